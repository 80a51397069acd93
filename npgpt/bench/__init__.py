"""npgpt beside PyTorch on the same machine: the same weights, batches and threads, each side in its own process.

shapes says what is measured, measure lets the sides take turns, worker is what a side's process runs (torch_gpt,
torch_train and, for tools/gpu_bench.py, torch_gpu are the peers, and import torch; nothing else here does), report
writes the figures down.
"""
