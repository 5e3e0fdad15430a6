"""The names of NVTabular 0.2 to 23.08, and what is written here in place of each.

Errors about a name that does not exist here use them, and the tables of tasks/ops/NVTABULAR.md are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING


@dataclass(frozen=True)
class ApiDifference:
    """One row of the table: how a thing is written there and here, as Markdown, and what differs.

    `names` are those that do not exist here, each with what to write: `Owner(parameter=)`, `Owner(parameter='value')`,
    `Owner.attribute`, `nvt.name` and `nvt.ops.name`. `Operator` stands for any operator, `Node` for `columns >> ..`.
    """

    there: str
    here: str
    why: str
    names: Mapping[str, str] = field(default_factory=dict)


AUTOMATIC = "leave it out: large vocabularies are split by hash, and spill when they must"
DIFFERENCES = (
    ApiDifference(
        "`nvt.Dataset(path, engine=, part_size=)`",
        "`Dataset(path, format=, partition_size=)`",
        "`engine` is pandas or cudf here; nothing is read before it is needed",
        {
            "Dataset(part_size=)": 'partition_size=, a number of bytes or a text: "64MiB"',
            "Dataset(row_groups_per_part=)": "partition_size=, in decoded bytes",
            "Dataset(npartitions=)": "partition_size=, in decoded bytes",
            "Dataset(cpu=)": 'engine="pandas"',
            "Dataset(sep=)": "delimiter=",
            "Dataset(names=)": "columns=, for text files without a header",
            "Dataset(dtypes=)": 'schema={"column": "float32"}',
            "Dataset(base_dataset=)": "leave it out: a Dataset inspects its files once, on first use",
        },
    ),
    ApiDifference(
        "`part_mem_fraction=`",
        "the same",
        (
            "of the memory of one worker, on GPUs of its GPU; next to `partition_size` it is an error "
            "(there `part_size` takes precedence)"
        ),
    ),
    ApiDifference(
        "`nvt.Dataset(ddf)` of a Dask or dask_cudf frame",
        "`Dataset(ddf)`, also `fit(ddf)` and `transform(ddf)`",
        "its partitions stay on the workers, and each pass computes them anew and compares them",
    ),
    ApiDifference(
        "`.persist()` of a frame",
        "`Dataset.persist()`, `Transformed.persist()`",
        "what is in memory has the same rows, row numbers and folds",
    ),
    ApiDifference(
        "`LocalCUDACluster(..)`, `Client(cluster)`",
        "the same, or a job with `kind: cuda`",
        (
            "leave the RMM pool out (`rmm_pool_size=`, `rmm.reinitialize` by `client.run`): with a pool "
            "of their own, results of GPUs go through the host, and a warning says so"
        ),
    ),
    ApiDifference(
        "`dataset.to_ddf()`, `.to_iter()`, `.head()`",
        "the same",
        "divisions of work are known; one partition per partition",
        {
            "Dataset.to_cpu": 'Dataset(.., engine="pandas")',
            "Dataset.to_gpu": 'Dataset(.., engine="cudf")',
            "Dataset.compute": "to_ddf().compute()",
            "Dataset.repartition": "Dataset(.., partition_size=)",
            "Dataset.infer_schema": ".schema",
            "Dataset.sample_dtypes": ".schema",
            "Dataset.partition_lens": ".num_rows, or to_ddf().map_partitions(len).compute()",
            "Dataset.merge": "JoinExternal as a step of the workflow",
            "Dataset.to_parquet": "Workflow(columns).fit_transform(dataset).to_parquet(path)",
            "Dataset.regenerate_dataset": "Workflow(columns).fit_transform(dataset).to_parquet(path, row_group_size=)",
            "Dataset.validate_dataset": "leave it out: row groups of any size are read in partitions of an even size",
            "Dataset.to_hugectr": "to_parquet(path): HugeCTR reads Parquet",
            "Dataset.to_npy": "to_dask_array().compute()",
        },
    ),
    ApiDifference(
        "`dataset.shuffle_by_keys(keys)`",
        "`Dataset.shuffle_by_keys(keys, sort_by)`, `source.keys`",
        "sorted too; needed by DifferenceLag, Rolling, Lag, History and Groupby, which say so",
    ),
    ApiDifference(
        "`nvt.Workflow(nodes, client=)`",
        "the same",
        (
            "`client=` of `fit`, `transform` and others takes precedence; by default the client of the "
            "Dataset, else the current one, else threads"
        ),
        {
            "Workflow(cat_names=)": 'Workflow(["name"] >> ops.Categorify())',
            "Workflow(cont_names=)": 'Workflow(["name"] >> ops.FillMissing() >> ops.Normalize())',
            "Workflow(label_name=)": 'the label as a column of the sum: Workflow(features + ["label"])',
            "Workflow(config=)": "steps of operators: columns >> operator",
            "Workflow(column_group=)": "the nodes as the first argument, without a name",
            "Workflow(output_dtypes=)": "the type as a step: >> ops.Lambda(expression=\"cast(_, 'float32')\")",
            "Workflow.add_feature": "steps of operators: Workflow(columns >> operator + ..)",
            "Workflow.add_preprocess": "steps of operators: Workflow(columns >> operator + ..)",
            "Workflow.add_cat_feature": 'Workflow(["name"] >> operator >> ops.Categorify())',
            "Workflow.add_cat_preprocess": 'Workflow(["name"] >> ops.Categorify())',
            "Workflow.add_cont_feature": 'Workflow(["name"] >> operator >> ops.Normalize())',
            "Workflow.add_cont_preprocess": 'Workflow(["name"] >> ops.Normalize())',
            "Workflow.finalize": "leave it out: fit learns and is done",
            "nvt.ColumnSelector": 'a list of names: ["a", "b"] >> operator',
            "nvt.ColumnGroup": 'a list of names: ["a", "b"] >> operator',
            "nvt.WorkflowNode": "columns >> operator, which makes one",
            "nvt.ops.ColumnSelector": 'a list of names: ["a", "b"] >> operator',
            "Operator(columns=)": 'the columns before the operator: ["a", "b"] >> operator',
            "Operator(preprocessing=)": "leave it out: steps follow one another by >>",
            "Operator(replace=)": "leave it out: >> ops.Rename(postfix=) gives another name",
            "Node.graph": "Workflow(node).output_schema_of(schema), which tells the columns that come out",
            "Node.output_schema": "Workflow(node).output_schema_of(schema)",
            "Node.output_columns": "Workflow(node).output_schema_of(schema)",
        },
    ),
    ApiDifference(
        "`workflow.fit`, `.transform`, `.fit_transform`",
        "the same",
        "all statistics of a phase in one pass; equal bits for any partitioning",
        {
            "Workflow.apply": "fit_transform(dataset), or transform(dataset) after a fit",
            "Workflow.update_stats": "fit(dataset)",
            "Workflow.clear_stats": "leave it out: a second fit forgets the first",
            "Workflow.build_and_process_graph": "fit_transform(dataset).to_parquet(path)",
            "Workflow.write_to_dataset": "fit_transform(dataset).to_parquet(path)",
            "Workflow.ddf_to_dataset": "fit_transform(dataset).to_parquet(path)",
            "Workflow.fit_schema": "output_schema_of(schema)",
            "Workflow.output_dtypes": "output_schema",
            "Workflow.input_dtypes": "input_schema",
            "Workflow.get_final_cols_names": "list(output_schema)",
            "Workflow.output_node": "final",
            "Workflow.graph": "output_schema_of(schema), which tells the columns that come out",
            "Workflow.get_subworkflow": "select(names)",
        },
    ),
    ApiDifference(
        "`workflow.get_ddf()`",
        "`.transform(..).to_ddf()`",
        "`.to_dask_array()` and `svd(..)` as well",
        {
            "Workflow.get_ddf": "transform(dataset).to_ddf()",
        },
    ),
    ApiDifference(
        "`.transform(...).to_parquet(out, ...)`",
        "the same, or a job",
        "published atomically, with a manifest and checksums; a job also resumes where it stopped",
    ),
    ApiDifference(
        "`shuffle=PER_PARTITION`, `PER_WORKER`, `FULL`",
        '`shuffle="partition"`, `"worker"`, `"full"`',
        "`full` is over all rows, `seed=` gives the same files on any number of workers; `key` is new",
        {
            "to_parquet(shuffle='PER_PARTITION')": 'shuffle="partition"',
            "to_parquet(shuffle='PER_WORKER')": 'shuffle="worker"',
            "to_parquet(shuffle='FULL')": 'shuffle="full"',
            "to_parquet(shuffle=None)": 'shuffle="none"',
            "to_parquet(shuffle=False)": 'shuffle="none"',
            "to_parquet(shuffle=True)": 'shuffle="full"',
            "nvt.Shuffle": 'a text: to_parquet(path, shuffle="full")',
            "nvt.io": 'rowmill.Dataset, and to_parquet(path, shuffle="full")',
        },
    ),
    ApiDifference(
        "`out_files_per_proc`, `output_files`",
        "`files_per_worker`, `files`, `rows_per_file`",
        "files by number are equal to one row; by `rows_per_file` all are full but the last",
        {
            "to_parquet(out_files_per_proc=)": "files_per_worker=",
            "to_parquet(out_files_per_file=)": "files=, or rows_per_file=",
            "to_parquet(output_files=)": "files=",
            "to_parquet(output_format=)": "format=",
            "to_parquet(row_group_size_bytes=)": "row_group_size=, in rows",
            "to_parquet(num_threads=)": "leave it out: the cluster has threads",
            "to_parquet(suffix=)": "leave it out: the names of files tell their format",
            "to_parquet(method=)": "leave it out: files are written whole, on the workers",
            "to_parquet(preserve_files=)": "leave it out: files by number are equal to one row",
            "to_parquet(write_hugectr_keyset=)": "leave it out: embeddings() has the number of rows of each table",
            "to_parquet(dtypes=)": "the type as a step: >> ops.Lambda(expression=\"cast(_, 'float32')\")",
        },
    ),
    ApiDifference(
        "`cats=`, `conts=`, `labels=`",
        "tags in the schema, `label` of a job",
        (
            "the manifest has tags, number of ids and embedding sizes; `Workflow.select(tags=..)`, "
            "`schema.with_any_tag([..])`"
        ),
        {
            "to_parquet(cats=)": "leave it out: tags of the manifest's schema name the columns",
            "to_parquet(conts=)": "leave it out: tags of the manifest's schema name the columns",
            "to_parquet(labels=)": '>> ops.AddTags(["target"]) on the label',
            "Schema.select_by_tag": "with_any_tag(tags), which gives names",
            "Schema.select_by_name": "[schema[name] for name in names]",
            "Schema.column_names": "list(schema)",
            "Schema.column_schemas": "columns",
            "Tags.ITEM": 'the text "item"',
            "Tags.USER": 'the text "user"',
            "Tags.SESSION": 'the text "session"',
            "Tags.ID": 'the text "id"',
            "Tags.SEQUENCE": 'the text "sequence"',
            "Tags.EMBEDDING": 'the text "embedding"',
            "Tags.TOKENIZED": 'the text "tokenized"',
            "Tags.BINARY_CLASSIFICATION": 'the text "binary_classification"',
            "Tags.MULTI_CLASS_CLASSIFICATION": 'the text "multi_class_classification"',
            "Tags.BINARY": 'the text "binary_classification"',
            "Tags.MULTI_CLASS": 'the text "multi_class_classification"',
            "Tags.REGRESSION": 'the text "regression"',
        },
    ),
    ApiDifference(
        "`workflow.save`, `Workflow.load`",
        "the same",
        "JSON and Parquet instead of pickle: readable, movable, loadable on the other engine",
        {
            "Workflow.save_stats": "save(path)",
            "Workflow.load_stats": "Workflow.load(path)",
        },
    ),
    ApiDifference(
        "`workflow.remove_inputs`",
        "the same",
        "",
    ),
    ApiDifference(
        "`get_embedding_sizes(workflow)`",
        "`workflow.embeddings()`, `rowmill inspect --embeddings`",
        "",
        {
            "nvt.ops.get_embedding_sizes": "workflow.embeddings()",
            "nvt.get_embedding_sizes": "workflow.embeddings()",
        },
    ),
    ApiDifference(
        "Categorify",
        "Categorify",
        (
            "ids by count, equal counts by value, not by partition; null is 1 everywhere, in lists and "
            "all-null columns too; `freq_threshold`, then `max_size`; `inverse`"
        ),
    ),
    ApiDifference(
        '`Categorify(encode_type="joint")`, `"combo"`',
        '`[["a", "b"]] >> Categorify()`, `Categorify(combo=True)`',
        "a nested list is a group",
        {
            "Categorify(encode_type=)": '[["a", "b"]] >> Categorify() for joint ids, Categorify(combo=True) for pairs',
            "Categorify(na_sentinel=)": "leave it out: null has the id 1",
            "Categorify(start_index=)": "leave it out: 0 is padding, 1 null, 2 any other value, and ids begin at 3",
            "Categorify(single_table=)": 'a nested list, which shares one table: [["a", "b"]] >> Categorify()',
        },
    ),
    ApiDifference(
        "`cat_cache`, `on_host`, `tree_width`, `out_path`, `search_sorted`",
        "",
        "not needed: large vocabularies are split by hash",
        {
            "Operator(cat_cache=)": AUTOMATIC,
            "Operator(on_host=)": AUTOMATIC,
            "Operator(tree_width=)": AUTOMATIC,
            "Operator(out_path=)": AUTOMATIC,
            "Operator(split_out=)": AUTOMATIC,
            "Operator(split_every=)": AUTOMATIC,
            "Operator(cardinality_memory_limit=)": AUTOMATIC,
            "Operator(search_sorted=)": AUTOMATIC,
        },
    ),
    ApiDifference(
        "Normalize",
        "Normalize",
        "Chan's moments: right at offsets of 1e9; constant columns give 0",
        {
            "Normalize(out_dtype=)": 'dtype="float32" or "float64"',
        },
    ),
    ApiDifference(
        "NormalizeMinMax",
        "NormalizeMinMax",
        "a constant column gives 0 (there 0.5); not clamped",
        {
            "NormalizeMinMax(out_dtype=)": 'dtype="float32" or "float64"',
            "nvt.ops.MinMax": "NormalizeMinMax",
        },
    ),
    ApiDifference(
        "FillMissing, `add_binary_cols`",
        "the same",
        "imputes elements of lists too; the type stays",
        {
            "FillMissing(fill_val=)": "fill_value=",
            "nvt.ops.ZeroFill": "FillMissing(0)",
        },
    ),
    ApiDifference(
        "FillMedian",
        "FillMedian",
        "imputes the exact median of all data, whatever the partitioning",
        {
            "nvt.ops.Median": "FillMedian",
        },
    ),
    ApiDifference(
        "Clip, LogOp, Rename, AddTags, AddMetadata",
        "the same",
        "LogOp (log-transform): below -1 is null",
        {
            "Rename(f=)": 'names={"old": "new"}, name= or postfix=',
            "AddMetadata(tags=)": "AddTags(tags)",
            "AddMetadata(properties=)": "metadata=",
            "nvt.ops.AddProperties": "AddMetadata",
            "nvt.ops.TagAsItemID": 'AddTags(["item_id"])',
            "nvt.ops.TagAsUserID": 'AddTags(["user_id"])',
            "nvt.ops.TagAsItemFeatures": 'AddTags(["item"])',
            "nvt.ops.TagAsUserFeatures": 'AddTags(["user"])',
        },
    ),
    ApiDifference(
        "Bucketize",
        "Bucketize; QuantileBucketize learns its boundaries",
        "null stays null",
    ),
    ApiDifference(
        "HashBucket, HashedCross",
        "the same",
        "the hashing trick, with one MurmurHash3 for CPU, GPU and every version; null has a bucket",
    ),
    ApiDifference(
        "TargetEncoding",
        "TargetEncoding",
        (
            "folds by row number, not by partition; counts of targets that are not null; out of fold "
            "only on the rows learned from; `min_count`"
        ),
        {
            "TargetEncoding(out_dtype=)": 'dtype="float32" or "float64"',
            "TargetEncoding(out_col=)": 'a step after it: >> ops.Rename(names={"TE_brand_label": "new"})',
            "TargetEncoding(name_sep=)": "a step after it: >> ops.Rename(..)",
        },
    ),
    ApiDifference(
        "JoinGroupby",
        "JoinGroupby",
        "statistics by group, joined back: counts are of values that are not null; `var`; composite keys",
    ),
    ApiDifference(
        "JoinExternal",
        "JoinExternal",
        (
            "rows keep their order; the side table is a file or, in Python, a frame, and is saved with "
            "the workflow; a key that occurs twice is an error unless `duplicates: first`"
        ),
        {
            "JoinExternal(df_ext=)": "table=, a path or a frame",
            "JoinExternal(on_ext=)": 'on={"key of the rows": "key of the table"}',
            "JoinExternal(columns_ext=)": "columns=, without the keys",
            "JoinExternal(drop_duplicates_ext=)": 'duplicates="first"',
            "JoinExternal(kind_ext=)": "leave it out: the suffix of the file tells its format; read={..} says more",
            "JoinExternal(cache=)": "leave it out: the table is read once, and saved with the workflow",
            "JoinExternal(how='inner')": (
                'how="left", and a step after it that leaves out rows without a match: >> ops.Dropna(), '
                "or ops.Filter(..)"
            ),
        },
    ),
    ApiDifference(
        "Groupby",
        "Groupby",
        (
            "group by: first and last follow the sort order; types are not narrowed; all rows of a key lie "
            "together, by `source.keys`"
        ),
    ),
    ApiDifference(
        "DifferenceLag",
        "DifferenceLag; Rolling is new",
        "correct across partition borders, by `source.keys`",
    ),
    ApiDifference(
        "LambdaOp",
        "Lambda",
        "a function, by import path so that it can be saved, or an expression; a lambda works in memory",
        {
            "nvt.ops.LambdaOp": "Lambda(function), or Lambda(expression=)",
            "nvt.ops.UDF": "Lambda(function), or Lambda(expression=)",
            "Lambda(f=)": "function=, or expression=",
            "Lambda(label=)": "name=",
            "Lambda(tags=)": "a step after it: >> ops.AddTags(tags)",
            "Lambda(properties=)": "a step after it: >> ops.AddMetadata(properties)",
            "Filter(f=)": "function=, or expression=",
        },
    ),
    ApiDifference(
        "ListSlice",
        "ListSlice",
        "`pad` fills up to end - start",
    ),
    ApiDifference(
        "Filter, Dropna",
        "the same",
        "keep rows of the whole table, not of one branch; an expression or a function by import path",
    ),
    ApiDifference(
        "DropLowCardinality, ReduceDtypeSize, ValueCount",
        "the same",
        "the schema says before fitting what will be settled by it",
    ),
    ApiDifference(
        "DataStats",
        "DataStats",
        "exact counts and moments; sketches with stated errors",
        {
            "nvt.ops.Moments": "DataStats",
            "nvt.ops.CategoryStatistics": "DataStats, or Categorify",
            "nvt.ops.GroupbyStatistics": "JoinGroupby",
        },
    ),
    ApiDifference(
        "ColumnSimilarity",
        "ColumnSimilarity",
        (
            "features as lists or a Parquet file, in Python also as a frame or a sparse matrix with "
            "weights; on the CPU too"
        ),
        {
            "ColumnSimilarity(left_features=)": "left=",
            "ColumnSimilarity(right_features=)": "right=",
            "ColumnSimilarity(on_device=)": "leave it out: the engine of the Dataset decides",
        },
    ),
    ApiDifference(
        "own classes of `Operator`, `StatOperator`",
        "a subclass of `Operator` or `Learned`, by import path in `op:`",
        "`observe`, `merge`, `finalize`; no Dask inside an operator",
        {
            "nvt.ops.StatOperator": "Learned, with observe, merge and finalize",
            "nvt.ops.BaseOperator": "Operator",
        },
    ),
    ApiDifference(
        "`Loader`, `TorchAsyncItr` (Merlin's dataloader)",
        '`Rows(path, batch_size=, device="cuda")`, `loader(..)`',
        (
            "of an output folder: the same order for any number of ranks, goes on in the middle of an "
            "epoch; DLPack, so JAX and CuPy too"
        ),
        {
            "nvt.TorchAsyncItr": 'Rows(path, batch_size=, device="cuda")',
            "nvt.DLDataLoader": 'Rows(path, batch_size=, device="cuda")',
            "nvt.KerasSequenceLoader": "loader(path, batch_size=)",
            "nvt.inference": "Workflow.load(path).transform(frame)",
        },
    ),
    ApiDifference(
        "Triton ensembles",
        "`Workflow.load(..).transform(frame)`",
        "in process",
    ),
)
WRITE = {name: here for difference in DIFFERENCES for name, here in difference.names.items()}


def of_parameter(owner: str, name: str) -> str:
    """Return what to write in place of a parameter of NVTabular; "" for any other name.

    >>> print(of_parameter("FillMissing", "fill_val"))
    'fill_val' is a name of NVTabular: write fill_value=
    >>> print(of_parameter("Clip", "columns"))
    'columns' is a name of NVTabular: write the columns before the operator: ["a", "b"] >> operator
    >>> of_parameter("FillMissing", "fil_value")
    ''
    """
    return _advice(name, f"{owner}({name}=)", f"Operator({name}=)")


def of_value(owner: str, name: str, parameters: Mapping[str, object]) -> str:
    """Return what to write in place of the value of a parameter in NVTabular; "" for any other value.

    >>> print(of_value("to_parquet", "shuffle", {"shuffle": "PER_WORKER"}))
    'shuffle=PER_WORKER' is a name of NVTabular: write shuffle="worker"
    """
    value = parameters.get(name, ...)
    if not isinstance(value, str | bool | None):  # none of the names; the text of any other may be long
        return ""
    return _advice(f"{name}={value}", f"{owner}({name}={value!r})")


def of_attribute(owner: str, name: str) -> str:
    """Return what to write in place of an attribute of NVTabular's class or module; "" for any other name.

    >>> of_attribute("Workflow", "get_ddf")
    "'get_ddf' is a name of NVTabular: write transform(dataset).to_ddf()"
    """
    return _advice(name, f"{owner}.{name}")


def _advice(shown: str, *names: str) -> str:
    here = next((WRITE[name] for name in names if name in WRITE), "")
    verb = "" if here.startswith("leave it out") else "write "
    return f"{shown!r} is a name of NVTabular: {verb}{here}" if here else ""


class KnownFromNVTabular:
    """A class whose attributes in NVTabular raise an AttributeError that says what to write here.

    `_known_as` is the owner of the names; the AttributeError of any other name is Python's own.
    """

    _known_as = ""

    if not TYPE_CHECKING:  # type checkers refuse any other name

        def __getattr__(self, name: str) -> object:
            if advice := of_attribute(self._known_as, name):
                raise AttributeError(f"{self._known_as}.{name} does not exist: {advice}")
            return object.__getattribute__(self, name)  # raises what Python raises, also the error of a property
