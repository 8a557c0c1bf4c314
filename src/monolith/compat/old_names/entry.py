"""Old names of the optimizers, initializers and compressors of rows. Arguments are those of ``monolith.embedding``."""

import warnings

from monolith import embedding

__all__ = [
    "AdadeltaOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AmsgradOptimizer",
    "BatchSoftmaxOptimizer",
    "ConstantsInitializer",
    "DynamicWdAdagradOptimizer",
    "FixedR8Compressor",
    "Fp16Compressor",
    "Fp32Compressor",
    "FtrlOptimizer",
    "GroupAdaGradOptimizer",
    "GroupFtrlOptimizer",
    "MomentumOptimizer",
    "MovingAverageOptimizer",
    "OneBitCompressor",
    "OnesInitializer",
    "RandomUniformInitializer",
    "RmspropOptimizer",
    "RmspropV2Optimizer",
    "SgdOptimizer",
    "StochasticRoundingFloat16OptimizerWrapper",
    "ZerosInitializer",
]

AdadeltaOptimizer = embedding.Adadelta
AdagradOptimizer = embedding.Adagrad
AdamOptimizer = embedding.Adam
AmsgradOptimizer = embedding.Amsgrad
BatchSoftmaxOptimizer = embedding.BatchSoftmax
DynamicWdAdagradOptimizer = embedding.DynamicWdAdagrad
FtrlOptimizer = embedding.Ftrl
GroupAdaGradOptimizer = embedding.GroupAdagrad
GroupFtrlOptimizer = embedding.GroupFtrl
MomentumOptimizer = embedding.Momentum
MovingAverageOptimizer = embedding.MovingAverage
RmspropOptimizer = embedding.RmsProp
RmspropV2Optimizer = embedding.RmsPropV2
SgdOptimizer = embedding.Sgd
StochasticRoundingFloat16OptimizerWrapper = embedding.StochasticRoundingFp16

ConstantsInitializer = embedding.Constant
OnesInitializer = embedding.Ones
RandomUniformInitializer = embedding.RandomUniform
ZerosInitializer = embedding.Zeros

FixedR8Compressor = embedding.FixedR8
Fp16Compressor = embedding.Fp16
Fp32Compressor = embedding.Fp32
OneBitCompressor = embedding.OneBit

warnings.warn("monolith.entry is deprecated; import monolith.embedding", DeprecationWarning, stacklevel=2)
