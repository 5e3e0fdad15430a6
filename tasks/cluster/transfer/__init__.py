"""How results get from one worker to another: GPU memory, host memory, spilling."""
