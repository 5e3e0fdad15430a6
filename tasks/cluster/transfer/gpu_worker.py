"""What a Dask worker with a GPU does before its first task: importing this module does it, once in a process.

It registers with Dask how results travel between GPUs and which of them are in a GPU's memory, stops Dask's profiler,
and makes the allocator whose memory other workers may open. Workers that rowmill starts import it at their start
(`pre_import` of dask-cuda), since a worker that receives pieces must know how to read them. In every other process that
computes with cuDF, `tasks.cluster.transfer.gpu_setup` imports it.
"""

from tasks.cluster.transfer import cuda_ipc, dask_profiler, gpu_pieces, gpu_spilling

gpu_spilling.register()
gpu_pieces.register()
dask_profiler.stop()
cuda_ipc.set_up()
