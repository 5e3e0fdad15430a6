"""Polars peer of the recipe criteo: counts filled with 0, cut off at 0, log(1 + x), z-scored; categories coded by frequency (1 null, 2
those seen fewer than 15 times, then the others); all rows in the order of a hashed row number, --files files. Two streaming passes:
statistics, then transform, sort and partitioned sink. The input are Parquet files, or the original's TSV files without a header, which
are parsed once, into memory: each query of the statistics would parse them again."""
import os, sys
from common import parse, Clock
a = parse("polars-criteo", suffix=dict(choices=["parquet", "tsv"], default="parquet"))
os.environ["POLARS_MAX_THREADS"] = str(a.threads)
import polars as pl

COUNTS, CATEGORIES = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
RARE = 15
comp = "uncompressed" if a.compression == "none" else a.compression
c = Clock().start()
if a.suffix == "parquet":
    src = pl.scan_parquet(a.paths)
else:
    types = {"label": pl.UInt8, **{n: pl.Int32 for n in COUNTS}, **{n: pl.String for n in CATEGORIES}}
    src = pl.scan_csv(a.paths, separator="\t", has_header=False, schema=types, quote_char=None).collect(engine="streaming").lazy()
    c.lap("read")


def log(name):
    return pl.col(name).fill_null(0).clip(lower_bound=0).cast(pl.Float64).log1p()


first, *counted = pl.collect_all([
    src.select(pl.len().alias("n"), *[f(log(v)).alias(f"{v}_{k}") for v in COUNTS for k, f in
                                      (("m", lambda e: e.mean()), ("s", lambda e: e.std()))]),
    *[src.group_by(v).len().filter(pl.col(v).is_not_null(), pl.col("len") >= RARE).sort(["len", v], descending=[True, False])
      for v in CATEGORIES]], engine="streaming")
n = first["n"][0]
known = dict(zip(CATEGORIES, counted))
c.lap("stats")


def codes(name):
    values = known[name][name]
    ids = pl.int_range(3, 3 + len(values), dtype=pl.Int32, eager=True)
    return pl.when(pl.col(name).is_null()).then(1).otherwise(
        pl.col(name).replace_strict(values, ids, default=2, return_dtype=pl.Int32)).cast(pl.Int32).alias(name)


out = src.select("label", *[((log(v) - first[f"{v}_m"][0]) / first[f"{v}_s"][0]).cast(pl.Float32).alias(v) for v in COUNTS],
                 *map(codes, CATEGORIES))
per = -(-n // a.files)
(out.with_row_index("__r").with_columns(pl.col("__r").hash(a.seed)).sort("__r").drop("__r")
 .sink_parquet(pl.PartitionBy(a.output, max_rows_per_file=per, approximate_bytes_per_file=None),
               compression=comp, row_group_size=1_000_000, engine="streaming"))
c.lap("transform+shuffle+write")
c.done(a, n)
