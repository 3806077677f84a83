#!/bin/sh
# crontab: 0 3 * * * /srv/tencost/nightly.sh, on a machine that has nothing else to do
cd /srv/tencost && export TENCOST_HOST=bench-1
day=$(date -u +%F)
mkdir -p nightly
for run in 1 2; do
    for network in bert_tiny mobilenet_v2; do
        tencost compile network=$network hardware=epyc-avx512-1c --to nightly/$network.so || echo "$network: not compiled"
    done
done > nightly/$day.txt 2>&1
tencost records regress --since "$day" --plot "nightly/$day.png" >> "nightly/$day.txt" 2>&1
code=$?
[ $code -eq 0 ] || mail -s "networks: regress ended with $code" team@example.org < "nightly/$day.txt"
exit $code
