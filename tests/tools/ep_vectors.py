#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Dispatch and combine in numpy, and the vectors that the reference in C is compared with (ep_reference.c).

    ep_vectors.py > ep_vectors.txt

Every rank's inputs in, every rank's outputs out; written apart from the C. Types: bfloat16 is uint16 (its bits),
float8_e4m3fn is uint8. Sums are float32 in the order that is written here, each product rounded before it is added, and
rounded once at the end. A line of the output is a case: its seed, and a CRC of all that it gives.
"""

import zlib

import numpy as np

E4M3_MAX = np.float32(448.0)
E4M3_INV = np.float32(1 / 448.0)
AMAX_MIN = np.float32(1e-4)
GROUP = 128  # elements of a scale


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x):
    """Rounds to nearest even; NaN becomes a quiet NaN."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    return np.where((u & 0x7FFFFFFF) > 0x7F800000, (u >> 16) | 0x40, rounded).astype(np.uint16)


def _e4m3_values():
    b = np.arange(256)
    e, m = (b >> 3) & 15, b & 7
    v = np.where(e == 0, m * 2.0**-9, (8 + m) * 2.0 ** (e.astype(np.float64) - 10))
    v[(b & 127) == 127] = np.nan
    return np.where(b > 127, -v, v).astype(np.float32)


E4M3 = _e4m3_values()
_POSITIVE = E4M3[:127]


def f32_to_e4m3(x):
    """Nearest, ties to even; beyond 448 is 448; NaN is 0x7F with its sign."""
    x = np.asarray(x, np.float32)
    a = np.minimum(np.abs(x), E4M3_MAX)
    hi = np.clip(np.searchsorted(_POSITIVE, np.where(np.isnan(a), 0, a)), 1, 126)
    lo = hi - 1
    up, down = _POSITIVE[hi] - a, a - _POSITIVE[lo]
    code = np.where(up < down, hi, np.where(down < up, lo, np.where(hi % 2 == 0, hi, lo)))
    code = np.where(np.isnan(x), 127, code)
    return (code | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def cast_fp8(x_bits, round_scale=False):
    """bf16 [T, H], H a multiple of 128 -> e4m3 [T, H], float32 scales [T, H/128] by which a reader multiplies."""
    t, h = x_bits.shape
    g = bf16_to_f32(x_bits).reshape(t, h // GROUP, GROUP)
    amax = np.maximum(np.abs(g).max(axis=2, initial=0), AMAX_MIN).astype(np.float32)
    inverse = (amax * E4M3_INV).astype(np.float32)
    if round_scale:
        u = inverse.view(np.uint32)
        exponent = (u >> 23).astype(np.int32) - 127 + ((u & 0x7FFFFF) != 0)
        scale, inverse = np.exp2(-exponent).astype(np.float32), np.exp2(exponent).astype(np.float32)
    else:
        scale = (E4M3_MAX / amax).astype(np.float32)
    return f32_to_e4m3((g * scale[:, :, None]).astype(np.float32)).reshape(t, h), inverse


def ue8m0(scales):
    """float32 powers of two [.., n] -> int32 [.., n/4]: four exponents each, the first in the lowest byte."""
    e = (np.ascontiguousarray(scales).view(np.uint32) >> 23).astype(np.uint8)
    return np.ascontiguousarray(e).view(np.int32)


def layout(topk_idx, nranks, nexperts):
    """Per rank [R], per expert [E], is_token_in_rank [T, R] of one rank."""
    local = nexperts // nranks
    in_rank = np.zeros((topk_idx.shape[0], nranks), bool)
    per_expert = np.zeros(nexperts, np.int32)
    for t, row in enumerate(topk_idx):
        for e in row[row >= 0]:
            per_expert[e] += 1
            in_rank[t, e // local] = True
    return in_rank.sum(axis=0).astype(np.int32), per_expert, in_rank


def normal_dispatch(x, topk_idx, topk_weights, nexperts, alignment=1, scales=None):
    """Lists by source rank -> list by receiving rank of dicts. Rows: by source rank, then by source token."""
    nranks, local = len(x), nexperts // len(x)
    layouts = [layout(i, nranks, nexperts) for i in topk_idx]
    prefix = np.cumsum(np.stack([p for p, _, _ in layouts]), axis=0).astype(np.int32)
    out = []
    for r in range(nranks):
        rows = [(s, t) for s in range(nranks) for t in range(len(x[s])) if layouts[s][2][t, r]]
        idx = np.array([topk_idx[s][t] for s, t in rows], np.int64).reshape(len(rows), topk_idx[0].shape[1])
        mine = (idx >= r * local) & (idx < (r + 1) * local)
        weights = np.array([topk_weights[s][t] for s, t in rows], np.float32).reshape(idx.shape)
        counts = sum(per_expert[r * local : (r + 1) * local] for _, per_expert, _ in layouts)
        out.append(
            {
                "x": np.array([x[s][t] for s, t in rows], x[0].dtype).reshape(len(rows), x[0].shape[1]),
                "scales": None if scales is None else np.array([scales[s][t] for s, t in rows]),
                "topk_idx": np.where(mine, idx - r * local, -1),
                "topk_weights": np.where(mine, weights, np.float32(0)),
                "counts": [int(-(-c // alignment) * alignment) for c in counts],
                "src_idx": np.array([t for _, t in rows], np.int32),
                "src_rank": np.array([s for s, _ in rows], np.int32),
                "rank_prefix": prefix,
                "in_rank": layouts[r][2],
            }
        )
    return out


def normal_combine(y, handles, weights=None, bias=()):
    """y: bf16 [N, H] by expert rank. Biases first, then ranks in order; rounded once. Lists of (x, weights)."""
    out = []
    for s, own in enumerate(handles):
        total = np.zeros((own["in_rank"].shape[0], y[0].shape[1]), np.float32)
        for b in bias:
            total = (total + bf16_to_f32(b[s])).astype(np.float32)
        w = None if weights is None else np.zeros((total.shape[0], weights[0].shape[1]), np.float32)
        for r, handle in enumerate(handles):
            for i in np.nonzero(handle["src_rank"] == s)[0]:
                t = handle["src_idx"][i]
                total[t] = (total[t] + bf16_to_f32(y[r][i])).astype(np.float32)
                if w is not None:
                    w[t] = (w[t] + weights[r][i]).astype(np.float32)
        out.append((f32_to_bf16(total), w))
    return out


def low_latency_dispatch(x, topk_idx, most, nexperts, fp8=None, masked=()):
    """
    fp8: None, "f32", "round" or "ue8m0". Slots of an expert: by source rank, then source token. A token that names an
    expert twice has one slot there, so the slots always suffice.
    """
    nranks, local, hidden = len(x), nexperts // len(x), x[0].shape[1]
    cast = [None if fp8 is None else cast_fp8(v, fp8 != "f32") for v in x]
    out = []
    for r in range(nranks):
        data = np.zeros((local, nranks * most, hidden), np.uint16 if fp8 is None else np.uint8)
        scales = None if fp8 is None else np.zeros((local, nranks * most, hidden // GROUP), np.float32)
        src = np.full((local, nranks * most), -1, np.int32)
        ranges = np.zeros((local, nranks), np.int64)
        count = np.zeros(local, np.int32)
        for e in range(local):
            for s in range(nranks):
                begin = int(count[e])
                if s not in masked:
                    for t in np.nonzero((topk_idx[s] == r * local + e).any(axis=1))[0]:
                        at = count[e]
                        data[e, at] = x[s][t] if fp8 is None else cast[s][0][t]
                        if scales is not None:
                            scales[e, at] = cast[s][1][t]
                        src[e, at], count[e] = t, at + 1
                ranges[e, s] = begin << 32 | int(count[e]) - begin
        out.append(
            {
                "x": data,
                "scales": ue8m0(scales) if fp8 == "ue8m0" else scales,
                "count": count,
                "src": src,
                "ranges": ranges,
            }
        )
    return out


def low_latency_combine(y, topk_idx, topk_weights, handles, masked=()):
    """y: bf16 [L, R*M, H] by expert rank. Top-k order: sum = sum + round(weight * row), rounded once at the end."""
    nranks, local = len(y), len(handles[0]["count"])
    out = []
    for s in range(nranks):
        t_n, k_n = topk_idx[s].shape
        total = np.zeros((t_n, y[0].shape[2]), np.float32)
        where = {}
        for r, h in enumerate(handles):
            for e in range(local):
                begin, n = int(h["ranges"][e, s]) >> 32, int(h["ranges"][e, s]) & 0xFFFFFFFF
                for at in range(begin, begin + n):
                    where[int(h["src"][e, at]), r * local + e] = (r, e, at)
        for t in range(t_n):
            for k in range(k_n):
                if topk_idx[s][t, k] < 0 or topk_idx[s][t, k] // local in masked:
                    continue
                r, e, at = where[t, int(topk_idx[s][t, k])]
                term = (np.float32(topk_weights[s][t, k]) * bf16_to_f32(y[r][e, at])).astype(np.float32)
                total[t] = (total[t] + term).astype(np.float32)
        out.append(f32_to_bf16(total))
    return out


class Random:
    """As ref_random() of tools/common/reference.c."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self):
        mask = (1 << 64) - 1
        self.seed = (self.seed + 0x9E3779B97F4A7C15) & mask
        z = self.seed
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return z ^ z >> 31

    def numbers(self, *shape):
        """Finite bfloat16 of every exponent below 1."""
        n = int(np.prod(shape))
        return np.array([self() & 0xBFFF for _ in range(n)], np.uint16).reshape(shape)


MOST = 6
FORMS = (None, "f32", "round", "ue8m0")


def case(seed):
    """The CRC of one case. ep_reference.c makes the same inputs, and takes the outputs in the same order."""
    rng = Random(seed)
    nranks = (1, 2, 3, 4, 8)[rng() % 5]
    local, form = 1 + rng() % 3, FORMS[rng() % 4]
    nexperts, k = nranks * local, 1 + rng() % 4
    hidden = 512 if form == "ue8m0" else 128 * (1 + rng() % 2)
    tokens = [rng() % (MOST + 1) for _ in range(nranks)]
    idx, w, x = [], [], []
    for t in tokens:
        idx.append(np.array([rng() % (nexperts + 1) for _ in range(t * k)], np.int64).reshape(t, k) - 1)
        w.append(np.array([(rng() % 4096) / 1024 for _ in range(t * k)], np.float32).reshape(t, k))
        x.append(rng.numbers(t, hidden))
    crc = 0

    def take(array, kind):
        nonlocal crc
        crc = zlib.crc32(np.ascontiguousarray(array, kind).tobytes(), crc)

    low = low_latency_dispatch(x, idx, MOST, nexperts, form)
    normal = normal_dispatch(x, idx, w, nexperts)
    rows = [rng.numbers(local, nranks * MOST, hidden) for _ in range(nranks)]
    sums = low_latency_combine(rows, idx, w, low)
    flat = [r.reshape(-1, hidden) for r in rows]
    back = normal_combine(flat, normal, [n["topk_weights"] for n in normal], [x, x])
    for r in range(nranks):
        per_rank, per_expert, in_rank = layout(idx[r], nranks, nexperts)
        take(per_rank, np.int32)
        take(per_expert, np.int32)
        take(in_rank, np.uint8)
        take(low[r]["x"], low[r]["x"].dtype)
        if form is not None:
            take(np.swapaxes(low[r]["scales"].view(np.uint32), 1, 2), np.uint32)
        take(low[r]["count"], np.int32)
        take(low[r]["src"], np.int32)
        take(low[r]["ranges"], np.int64)
        take(sums[r], np.uint16)
        take(normal[r]["src_rank"], np.int32)
        take(normal[r]["src_idx"], np.int32)
        take(normal[r]["topk_idx"], np.int64)
        take(normal[r]["topk_weights"], np.float32)
        take(back[r][0], np.uint16)
        take(back[r][1], np.float32)
    return crc


if __name__ == "__main__":
    for number in range(200):
        print(number, f"{case(number):08x}")
