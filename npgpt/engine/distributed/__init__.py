"""Data parallel training: many processes, called ranks, each with the whole model and its rows of every batch.

Only rank 0 runs the program: it reads the data, trains, prints and saves. Its engine, a `Distributed`, sends commands
to the other ranks, which `follow`, and does its own part. So nothing else in npgpt knows about ranks, and only the
first machine needs the data and the run's folder.

A step gives the bits of one process with as many shards, because every sum has a fixed order:

    each rank       loss and gradients of its rows, by the wrapped engine
    all-to-all      each rank gets its chunk of the gradients of every rank, and adds them up in rank order
    all-gather      the losses, and the sums of squares for the norm
    each rank       AdamW on its chunk, whose moments only it holds (ZeRO stage 1, Rajbhandari et al. 2020,
                    arXiv:1910.02054)
    all-gather      the new parameters

A rank that fails aborts the job; if one is killed, the launcher ends the others. A rank that does not answer is given
up after half an hour, or at the second Ctrl-C.
"""
