/*
The threads of a compiled network: linked into its library, in place of the pool of TVM's runtime.

TVM's code hands a parallel loop to the function in `__TVMBackendParallelLaunch`, which TVM's loader sets in libraries
that export that variable. Here it is defined and hidden, so that whoever loads the library, in whatever language, gets
these threads. What is other than in TVM's pool:

- A thread without work looks for it for a tenth of a millisecond or more, with the processor's pause instruction, and
  sleeps then. TVM's threads call sched_yield: not at all, and each operator waits for the system to wake them, or often,
  and each call hands the processor to whatever else runs there, for milliseconds.
- A thread that found the processor taken away while it looked tells the others, and for some time, the longer the more
  often that happens, none looks for long: what is left of their time on a processor that others use, too, is for work,
  and who sleeps is preferred when it wakes.
- A share that its thread has not begun when the caller is through with its own is computed by the caller: a thread that
  is asleep or that the system runs later costs what it would have computed, not the time until it comes.
- A thread that is woken is kept off the CPU of the caller, behind which the system may put it: the caller, which computes
  late shares, would compute all of them.
- Thread k computes share k of every loop where it can, so that what an operator wrote lies in the caches of the thread
  that reads it.
- There is one pool a library. Another call while one runs, or one from within a loop, runs alone on its own thread:
  several threads that call a network do not ask for more cores than it was compiled for.
- After a fork the child starts threads of its own.

Threads: TENCOST_CORES as it was compiled, or TVM_NUM_THREADS of the environment, and no more than the CPUs that the
process may use when it first runs a loop. C11 with GCC's builtins, and C++ as well; Linux.
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 256
#ifndef SPIN_NS
#define SPIN_NS 50000 /* for each thread, as they wake one another */
#endif
#define MOST_SPIN_NS 1000000
#define TAKEN_NS 500000 /* between two looks, some microseconds apart: another process ran between them */
#define AGAIN_NS 20000000 /* a process that stays has the processor again within some slices of the scheduler */
#define LEAST_CROWDED_NS 2000000
#define MOST_CROWDED_NS 1000000000
#define LINE 64

typedef struct {
  void* unused; /* of loops with barriers, which no schedule has */
  int32_t num_task;
} Group;
typedef int (*Share)(int number, Group* group, void* data);

/* What a thread's seat says. Its thread goes from EMPTY to ASLEEP, and whoever takes the share from POSTED to EMPTY. */
enum { EMPTY, POSTED, ASLEEP, ENDED };

typedef struct {
  int32_t state;
  int32_t number;
  pthread_t thread;
  int32_t id; /* the system's, of the thread; 0 before it runs */
} __attribute__((aligned(LINE))) Seat;

static Seat seats[MOST_THREADS];
static struct {
  Share share;
  void* data;
  Group group;
  int32_t failed;
  int32_t cpu; /* that the caller runs on */
} job __attribute__((aligned(LINE)));
/* Seats whose threads slept when their share was posted: 1 until somebody wakes them. Seat k's thread wakes 2k + 1 and
   2k + 2, as one thread alone would take longer for many than they stay awake. */
static int32_t to_wake[MOST_THREADS];
static cpu_set_t cpus; /* of the thread that started them */
static int32_t threads; /* the caller's among them; 0: not started */
/* Shares of others that are not computed yet, and whether the caller sleeps until there are none. */
static int32_t missing __attribute__((aligned(LINE)));
static int32_t caller_sleeps;
static int64_t crowded_until __attribute__((aligned(LINE)));
static int64_t crowded_ns;
static int32_t is_taken __attribute__((aligned(LINE)));

static void futex(int32_t* word, int operation, int32_t value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Another process had this thread's processor: for a short time, for twice the last time if that has just ended. */
static void note_crowd(int64_t now) {
  int64_t until = __atomic_load_n(&crowded_until, __ATOMIC_RELAXED);
  int64_t length = __atomic_load_n(&crowded_ns, __ATOMIC_RELAXED);
  if (now < until) return; /* another thread has noted it */
  length = now - until > AGAIN_NS ? LEAST_CROWDED_NS : 2 * length;
  if (length > MOST_CROWDED_NS) length = MOST_CROWDED_NS;
  __atomic_store_n(&crowded_ns, length, __ATOMIC_RELAXED);
  __atomic_store_n(&crowded_until, now + length, __ATOMIC_RELAXED);
}

/* Wait until a word is no longer this value, for a time that grows with the threads; return whether it is another. */
static int changes_soon(int32_t* word, int32_t value) {
  int64_t begun = 0, last = 0;
  int64_t most = (int64_t)SPIN_NS * __atomic_load_n(&threads, __ATOMIC_RELAXED);
  if (most > MOST_SPIN_NS) most = MOST_SPIN_NS;
  for (;;) {
    for (int turn = 0; turn < 64; ++turn) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return 1;
      pause_briefly();
    }
    int64_t now = now_ns();
    if (begun == 0) begun = last = now;
    if (now - last > TAKEN_NS) note_crowd(now);
    if (now - begun > most || now < __atomic_load_n(&crowded_until, __ATOMIC_RELAXED)) return 0;
    last = now;
  }
}

/* Compute a share that was posted, unless somebody has taken it; return whether this thread did. */
static int compute(Seat* seat) {
  int32_t posted = POSTED;
  if (!__atomic_compare_exchange_n(&seat->state, &posted, EMPTY, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return 0;
  if (job.share(seat->number, &job.group, job.data) != 0) __atomic_store_n(&job.failed, 1, __ATOMIC_RELAXED);
  return 1;
}

/* Wake a thread that sleeps, on another CPU than the caller's: the system may put it there, behind the caller. */
static void wake(int number) {
  if (number >= __atomic_load_n(&threads, __ATOMIC_RELAXED) || !__atomic_load_n(&to_wake[number], __ATOMIC_RELAXED) ||
      !__atomic_exchange_n(&to_wake[number], 0, __ATOMIC_ACQ_REL))
    return;
  cpu_set_t others = cpus;
  CPU_CLR(job.cpu, &others);
  int32_t id = __atomic_load_n(&seats[number].id, __ATOMIC_RELAXED);
  if (CPU_COUNT(&others) > 0 && id != 0) sched_setaffinity(id, sizeof(others), &others);
  futex(&seats[number].state, FUTEX_WAKE, 1);
}

static void* work(void* seat_of_thread) {
  Seat* seat = (Seat*)seat_of_thread;
  __atomic_store_n(&seat->id, (int32_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
  for (;;) {
    int32_t state = __atomic_load_n(&seat->state, __ATOMIC_ACQUIRE);
    if (state == ENDED) return NULL;
    if (state == POSTED) {
      wake(2 * seat->number + 1);
      wake(2 * seat->number + 2);
      if (compute(seat) && __atomic_sub_fetch(&missing, 1, __ATOMIC_SEQ_CST) == 0 &&
          __atomic_load_n(&caller_sleeps, __ATOMIC_SEQ_CST))
        futex(&missing, FUTEX_WAKE, 1);
    } else if (state == ASLEEP) {
      futex(&seat->state, FUTEX_WAIT, ASLEEP);
    } else if (!changes_soon(&seat->state, EMPTY)) {
      int32_t empty = EMPTY;
      __atomic_compare_exchange_n(&seat->state, &empty, ASLEEP, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
  }
}

static void forget_threads(void) { /* of the process that this one was forked from */
  threads = missing = caller_sleeps = is_taken = 0;
  for (int number = 0; number < MOST_THREADS; ++number) seats[number].state = seats[number].id = to_wake[number] = 0;
}

static void start(void) {
  static int is_prepared = 0;
  if (!is_prepared) is_prepared = pthread_atfork(NULL, NULL, forget_threads) == 0;
  const char* asked = getenv("TVM_NUM_THREADS");
  int count = asked != NULL && atoi(asked) > 0 ? atoi(asked) : TENCOST_CORES;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < count) count = CPU_COUNT(&cpus);
  if (count > MOST_THREADS) count = MOST_THREADS;
  int number = 1;
  for (; number < count; ++number) {
    seats[number].number = number;
    if (pthread_create(&seats[number].thread, NULL, work, &seats[number]) != 0) break;
  }
  __atomic_store_n(&threads, number, __ATOMIC_RELEASE);
}

/* Before the library is unloaded, or the process ends. */
__attribute__((destructor)) static void end(void) {
  for (int number = 1; number < threads; ++number) {
    __atomic_store_n(&seats[number].state, ENDED, __ATOMIC_RELEASE);
    futex(&seats[number].state, FUTEX_WAKE, 1);
  }
  for (int number = 1; number < threads; ++number) pthread_join(seats[number].thread, NULL);
  threads = 0;
}

static int launch(Share share, void* data, int num_task) {
  Group alone = {NULL, 1};
  int32_t is_free = 0;
  (void)num_task; /* 0 in all code that TVM makes: as many as there are threads */
  if (!__atomic_compare_exchange_n(&is_taken, &is_free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return share(0, &alone, data);
  if (threads == 0) start();
  if (threads == 1) {
    __atomic_store_n(&is_taken, 0, __ATOMIC_RELEASE);
    return share(0, &alone, data);
  }
  job.share = share;
  job.data = data;
  job.group.num_task = threads;
  job.failed = 0;
  job.cpu = sched_getcpu();
  __atomic_store_n(&missing, threads - 1, __ATOMIC_RELAXED);
  for (int number = threads - 1; number > 0; --number)
    if (__atomic_exchange_n(&seats[number].state, POSTED, __ATOMIC_ACQ_REL) == ASLEEP)
      __atomic_store_n(&to_wake[number], 1, __ATOMIC_RELEASE);
  wake(1);
  wake(2);
  int failed = share(0, &job.group, data) != 0;
  for (int number = 1; number < threads; ++number)
    if (compute(&seats[number])) __atomic_sub_fetch(&missing, 1, __ATOMIC_SEQ_CST);
  for (int32_t left; (left = __atomic_load_n(&missing, __ATOMIC_ACQUIRE)) != 0;) {
    if (changes_soon(&missing, left)) continue;
    __atomic_store_n(&caller_sleeps, 1, __ATOMIC_SEQ_CST);
    if ((left = __atomic_load_n(&missing, __ATOMIC_SEQ_CST)) != 0) futex(&missing, FUTEX_WAIT, left);
    __atomic_store_n(&caller_sleeps, 0, __ATOMIC_SEQ_CST);
  }
  failed |= __atomic_load_n(&job.failed, __ATOMIC_RELAXED);
  __atomic_store_n(&is_taken, 0, __ATOMIC_RELEASE);
  return failed ? -1 : 0;
}

#ifdef __cplusplus
extern "C" {
#endif
#ifdef TENCOST_LAUNCH /* a library of its own, for a process that compiles and runs in memory */
int TENCOST_LAUNCH(Share share, void* data, int num_task) { return launch(share, data, num_task); }
#else
extern int (*__TVMBackendParallelLaunch)(Share, void*, int) __attribute__((visibility("hidden")));
int (*__TVMBackendParallelLaunch)(Share, void*, int) = launch;
#endif
#ifdef __cplusplus
}
#endif
