"""What a person can choose: schema, composition, and where the parts are found. Imports no room of the house."""

from tencost.config.measuring import Isa as Isa
from tencost.config.measuring import MeasureConfig as MeasureConfig
from tencost.config.model import ModelConfig as ModelConfig
from tencost.config.model import Pool as Pool
from tencost.config.model import model_config as model_config
from tencost.config.schema import AdaptConfig as AdaptConfig
from tencost.config.schema import AdaptMode as AdaptMode
from tencost.config.schema import Config as Config
from tencost.config.schema import DatasetConfig as DatasetConfig
from tencost.config.schema import ExecutionConfig as ExecutionConfig
from tencost.config.schema import ExecutionKind as ExecutionKind
from tencost.config.schema import FeaturesConfig as FeaturesConfig
from tencost.config.schema import GraphChoice as GraphChoice
from tencost.config.schema import HardwareConfig as HardwareConfig
from tencost.config.schema import NetworkConfig as NetworkConfig
from tencost.config.schema import NetworkInput as NetworkInput
from tencost.config.schema import PathsConfig as PathsConfig
from tencost.config.schema import RuleConfig as RuleConfig
from tencost.config.schema import RunnerKind as RunnerKind
from tencost.config.schema import SplitConfig as SplitConfig
from tencost.config.schema import SplitPolicy as SplitPolicy
from tencost.config.schema import TunerConfig as TunerConfig
from tencost.config.schema import project_root as project_root
from tencost.config.schema import resolve as resolve
