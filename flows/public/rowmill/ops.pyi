# The names of rowmill.ops for type checkers and editors; tests/flows/test_public.py compares them with tasks.ops.

from tasks.ops.base import (
    Context as Context,
    Learned as Learned,
    Operator as Operator,
    Unit as Unit,
    make_operator as make_operator,
)
from tasks.ops.buckets import Bucketize as Bucketize, HashBucket as HashBucket, HashedCross as HashedCross
from tasks.ops.categorify import Categorify as Categorify
from tasks.ops.continuous import Clip as Clip, FillMissing as FillMissing, LogOp as LogOp, Normalize as Normalize
from tasks.ops.datastats import DataStats as DataStats
from tasks.ops.filters import Dropna as Dropna, Filter as Filter
from tasks.ops.user_functions import Lambda as Lambda
from tasks.ops.join_external import JoinExternal as JoinExternal
from tasks.ops.join_groupby import JoinGroupby as JoinGroupby
from tasks.ops.linear_ops import PCA as PCA, PairwiseRegression as PairwiseRegression
from tasks.ops.list_ops import EqualLengths as EqualLengths, ListSlice as ListSlice, ValueCount as ValueCount
from tasks.ops.quantiles import FillMedian as FillMedian, QuantileBucketize as QuantileBucketize
from tasks.ops.scaling import NormalizeMinMax as NormalizeMinMax, ReduceDtypeSize as ReduceDtypeSize
from tasks.ops.schema_ops import (
    AddMetadata as AddMetadata,
    AddTags as AddTags,
    DropLowCardinality as DropLowCardinality,
)
from tasks.ops.similarity import ColumnSimilarity as ColumnSimilarity
from tasks.ops.target_encoding import TargetEncoding as TargetEncoding
from tasks.ops.text_ops import Cross as Cross, DateParts as DateParts, Rename as Rename, SplitText as SplitText
from tasks.ops.windows import (
    DifferenceLag as DifferenceLag,
    Groupby as Groupby,
    History as History,
    Lag as Lag,
    Rolling as Rolling,
)
