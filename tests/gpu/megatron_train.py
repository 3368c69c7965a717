#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
Trains small GPT models with megatron-core, in the layouts of docs/megatron.md:

    shunt run --stats -- torchrun --nproc-per-node 2 tests/gpu/megatron_train.py [--steps 20] [--layouts tp,pp,dp,moe,flex]
        [--deterministic] [--save FILE] [--compare FILE] [--forwarded none|any]

Every layout is trained twice with the same seeds: losses must be finite, fall, be the same on all ranks and the same in
both runs; those of flex are those of moe, up to the order of sums. flex is left out where there is no module deep_ep
(`shunt run --deep-ep`), unless --layouts names it. --save writes them, and --compare compares with what another library gave, up to the order of sums. At the
end rank 0 says which path the calls took; with "--forwarded none" a call that went to NCCL is a failure. It needs
torch, megatron-core (0.19.2 was read for it) and Python 3.12, no Transformer Engine and no apex. Exit 77: one of them
is missing, or there are too few GPUs; with SHUNT_MULTI_RANK_GPU=1 ranks share them.
"""

import argparse
import gc
import importlib.util
import json
import math
import os
import sys

try:
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig
except ImportError as error:
    print(f"SKIP megatron: {error}")
    sys.exit(77)

import gpus

VOCABULARY, LENGTH, BATCH, MICROBATCHES = 512, 64, 4, 4

EXPERTS = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_router_dtype": "fp32", "add_bias_linear": False}
# name: (what initialize_model_parallel gets, what TransformerConfig gets beside it). The rest of the ranks is for data.
LAYOUTS = {
    "tp": ({"tensor_model_parallel_size": 2}, {}),  # PyTorch's layer norm takes no sequence parallelism
    "pp": ({"pipeline_model_parallel_size": 2}, {"pipeline_dtype": torch.bfloat16}),
    "dp": ({}, {}),
    "moe": ({"expert_model_parallel_size": 2}, {"moe_token_dispatcher_type": "alltoall", **EXPERTS}),
    # By the module deep_ep: shunt run --deep-ep.
    "flex": (
        {"expert_model_parallel_size": 2},
        {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep", **EXPERTS},
    ),
}
HAS_DEEP_EP = importlib.util.find_spec("deep_ep") is not None


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--layouts", default=",".join(name for name in LAYOUTS if name != "flex" or HAS_DEEP_EP))
    p.add_argument("--deterministic", action="store_true", help="as Megatron's --deterministic-mode")
    p.add_argument("--save")
    p.add_argument("--compare")
    p.add_argument("--forwarded", choices=["none", "any"], default="any")
    return p.parse_args()


def set_deterministic():
    """What Megatron's --deterministic-mode does to a process."""
    os.environ.setdefault("NCCL_ALGO", "Ring")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def make_model(layout, extra):
    config = TransformerConfig(
        num_layers=4,
        hidden_size=128,
        num_attention_heads=4,
        bf16=True,
        params_dtype=torch.bfloat16,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        **layout,
        **extra,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(num_experts=config.num_moe_experts),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    model = Float16Module(config, model.cuda())
    # The distributed optimizer: gradients are scattered, parameters gathered, both while the next thing is computed.
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True, bucket_size=100_000
    )
    model = DistributedDataParallel(config, ddp_config, model)
    config.no_sync_func = model.no_sync
    config.finalize_model_grads_func = finalize_model_grads
    optimizer_config = OptimizerConfig(
        lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True, overlap_param_gather=True
    )
    optimizer = get_megatron_optimizer(optimizer_config, [model], use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    model.broadcast_params()
    return model, optimizer


def batches(seed):
    """Sequences that count upwards from random numbers, which a model learns soon; other ones for each data rank."""
    generator = torch.Generator().manual_seed(seed + parallel_state.get_data_parallel_rank())
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, LENGTH)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="cuda"), diagonal=1)
    while True:
        first = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator).cuda()
        yield (first + positions) % VOCABULARY, (first + positions + 1) % VOCABULARY, positions, mask


def loss_of(output):
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def forward_step(iterator, model):
    tokens, labels, positions, mask = next(iterator)
    return model(tokens, positions, mask, labels=labels), loss_of


def one_loss(found):
    """The mean loss of all data ranks, on all ranks: the last stage has it."""
    mean = torch.stack([row["loss"] for row in found]).mean() if found else torch.zeros((), device="cuda")
    dist.all_reduce(mean)
    return mean.item() / (dist.get_world_size() // parallel_state.get_pipeline_model_parallel_world_size())


def train(name, steps):
    layout, extra = LAYOUTS[name]
    parallel_state.initialize_model_parallel(**layout, create_gloo_process_groups=False)
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    model, optimizer = make_model(layout, extra)
    iterator, schedule, losses = batches(100), get_forward_backward_func(), []
    for _ in range(steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        found = schedule(
            forward_step_func=forward_step,
            data_iterator=iterator,
            model=model,
            num_microbatches=MICROBATCHES,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        updated = optimizer.step()[0]
        losses.append(one_loss(found) if updated else math.nan)
    del model, optimizer
    gc.collect()
    torch.cuda.synchronize()
    dist.barrier()
    parallel_state.destroy_model_parallel()
    return losses


def wrong_with(name, first, second):
    """A line, or None."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, first)
    if not all(math.isfinite(loss) for loss in first):
        return f"{name}: a loss is not finite, or a step was left out: {first}"
    if first[-1] >= first[0]:
        return f"{name}: the loss does not fall: {first[0]} to {first[-1]}"
    if any(losses != first for losses in everyone):
        return f"{name}: ranks have different losses"
    if first != second:
        at = next(i for i, (a, b) in enumerate(zip(first, second)) if a != b)
        return f"{name}: step {at} gave {first[at]}, and {second[at]} in a second run"
    return None


def differences(name, losses, where, theirs):
    for step, (ours, other) in enumerate(zip(losses, theirs)):
        # Sums in another order, in bfloat16, move a loss by a little that grows with the steps.
        if abs(ours - other) > 0.02 * max(abs(other), 1):
            yield f"{name}: step {step} gave {ours}, and {other} in {where}"


def wrong_against(path, results):
    with open(path) as file:
        theirs = json.load(file)
    for name, losses in results.items():
        yield from differences(name, losses, path, theirs.get(name, []))


def paths(forwarded):
    """Says what the calls took; lines about what was forwarded and should not have been."""
    try:
        import libshunt
    except ImportError:
        print("libshunt is not installed: SHUNT_STATS=1 shows the paths", flush=True)
        return []
    if not libshunt.status():
        print(libshunt.status().reason, flush=True)
        return [] if forwarded == "any" else ["Shunt is not in front of NCCL"]
    stats = libshunt.stats()
    if dist.get_rank() == 0:
        print(stats, flush=True)
    went = [f"{count.op}: {count.reason}" for comm in stats for count in comm.counts if count.path == "nccl"]
    return [f"{len(went)} kinds of calls went to NCCL, such as {went[0]}"] if went and forwarded == "none" else []


def main():
    options = parse()
    names = options.layouts.split(",")
    for name in names:
        if name not in LAYOUTS:
            sys.exit(f"megatron: there is no layout {name}: {', '.join(LAYOUTS)}")
    gpus.need("megatron")
    if options.deterministic:
        set_deterministic()
    device = gpus.mine(int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    results, wrong = {}, []
    for name in names:
        runs = [train(name, options.steps) for _ in range(2)]
        results[name] = runs[0]
        line = wrong_with(name, *runs)
        wrong += [line] if line else []
        if dist.get_rank() == 0:
            print(f"{name}: loss {runs[0][0]:.4f} to {runs[0][-1]:.4f}{', ' + line if line else ''}", flush=True)
    if "moe" in results and "flex" in results:
        wrong += differences("flex", results["flex"], "layout moe", results["moe"])
    if options.compare:
        wrong += wrong_against(options.compare, results)
    if options.save and dist.get_rank() == 0:
        with open(options.save, "w") as file:
            json.dump(results, file)
    wrong += paths(options.forwarded)
    for line in wrong:
        print(f"FAIL rank {dist.get_rank()}: {line}", flush=True)
    if options.compare:  # plain NCCL 2.28.3 on 2 H200: the end of the groups was seen to hang
        os._exit(bool(wrong))
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
