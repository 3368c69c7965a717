/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Formats (base/dtypes.def): elements whose numbers, accumulator and operator the launch says in its flags. One kernel
 * of a shape serves all formats of a size, by code out of line. elements.h includes this file.
 *
 * Operations are fp32's, rounded to the accumulator after each: fp32 has more than twice the bits of both others and
 * two more, so the result is that of an addition or multiplication in the accumulator's own format.
 */
typedef struct formatted<1> any8;
typedef struct formatted<2> any16;

template <typename T> struct is_any {
	static const bool value = false;
};
template <int B> struct is_any<struct formatted<B>> {
	static const bool value = true;
};

GPU_FN u32 any_element(u32 flags) { return flags / SHUNT_K_ELEMENT & 15; }
GPU_FN u32 any_accumulator(u32 flags) { return flags / SHUNT_K_ACCUMULATOR & 15; }

/*
 * float8 e4m3b15, of MSCCL++ and Triton: 4 bits of exponent with bias 15, 3 of mantissa, no infinity and no NaN.
 * Shifted by 7 it is a float16.
 */
struct b15 {
	u8 x;
};
GPU_FN f32 any_to_f32(struct b15 v) { return gpu_to_f32((struct f16){ (u16)((v.x & 0x80) << 8 | (v.x & 0x7f) << 7) }); }
template <typename E> GPU_FN f32 any_to_f32(E v) { return gpu_to_f32(v); }

/* To float16 first, then to the nearest; ties away from zero. What is too large, and NaN, becomes the largest: 1.875.
 */
GPU_FN void any_from_f32(struct b15 *d, f32 v)
{
	u32 half = gpu_from_f32<struct f16>(v).x, size = half & 0x7fff;

	d->x = (u8)((half >> 8 & 0x80) | (2 * (size < 0x3f80 ? size : 0x3f80) + 0x80) >> 8);
}
template <typename E> GPU_FN void any_from_f32(E *d, f32 v) { *d = gpu_from_f32<E>(v); }

/* Calls f<E>(...) for the element of a launch; B bytes. */
#define ANY_ELEMENT(element, f, ...) \
	if constexpr (B == 2) { \
		if ((element) == SHUNT_ELEMENT_F16) \
			f<struct f16>(__VA_ARGS__); \
		else \
			f<struct bf16>(__VA_ARGS__); \
	} else if ((element) == SHUNT_ELEMENT_F8E4M3) { \
		f<struct f8e4m3>(__VA_ARGS__); \
	} else if ((element) == SHUNT_ELEMENT_F8E5M2) { \
		f<struct f8e5m2>(__VA_ARGS__); \
	} else { \
		f<struct b15>(__VA_ARGS__); \
	}

template <typename E, int N> GPU_FN void any_widen(f32 (&w)[N], struct gpu_v16 v)
{
	union pack<E> p;

	p.v = v;
	GPU_UNROLL for (int i = 0; i < N; i++)
		w[i] = any_to_f32(p.e[i]);
}

template <typename E, int N> GPU_FN void any_narrow(const f32 (&w)[N], struct gpu_v16 *v)
{
	union pack<E> p;

	GPU_UNROLL for (int i = 0; i < N; i++)
		any_from_f32(&p.e[i], w[i]);
	*v = p.v;
}

template <typename E, int N> GPU_FN void any_round(f32 (&w)[N])
{
	GPU_UNROLL for (int i = 0; i < N; i++) {
		E rounded;

		any_from_f32(&rounded, w[i]);
		w[i] = any_to_f32(rounded);
	}
}

template <int B> GPU_NOINLINE struct wide<struct formatted<B>> any_start(struct gpu_v16 v, u32 flags)
{
	struct wide<struct formatted<B>> w;

	ANY_ELEMENT(any_element(flags), any_widen, w.a, v)
	return w;
}

template <int B>
GPU_NOINLINE struct wide<struct formatted<B>> any_add(struct wide<struct formatted<B>> w, struct gpu_v16 v, u32 flags)
{
	u32 op = flags / SHUNT_K_OPERATOR & 3, to = any_accumulator(flags);
	f32 x[16 / B];

	ANY_ELEMENT(any_element(flags), any_widen, x, v)
	GPU_UNROLL for (int i = 0; i < 16 / B; i++)
		w.a[i] = op == SHUNT_KOP_EXT ? op_ext::apply(w.a[i], x[i], flags) :
		    op == SHUNT_KOP_PROD     ? gpu_mul(w.a[i], x[i]) :
		                               w.a[i] + x[i];
	if (to == SHUNT_ELEMENT_F32)
		return w;
	if (B == 1 && to == SHUNT_ELEMENT_F16)
		any_round<struct f16>(w.a);
	else
		ANY_ELEMENT(to, any_round, w.a)
	return w;
}

template <int B> GPU_NOINLINE struct gpu_v16 any_finish(struct wide<struct formatted<B>> w, u32 flags)
{
	struct gpu_v16 v;

	ANY_ELEMENT(any_element(flags), any_narrow, w.a, &v)
	return v;
}

struct any_factor {
	f32 value;
	u32 flags;
};
template <typename T> struct factor_of {
	typedef T type;
};
template <int B> struct factor_of<struct formatted<B>> {
	typedef struct any_factor type;
};

template <typename E> GPU_FN void any_one(u32 x, f32 *value) { *value = any_to_f32((E){ (decltype(E().x))x }); }

template <int B> GPU_NOINLINE struct any_factor any_load_scalar(const struct shunt_kargs &a)
{
	u32 x = a.flags & SHUNT_K_SCALAR_ON_DEVICE ? ((const struct formatted<B> *)a.scalar)->x : (u32)a.scalar;
	struct any_factor factor = { 0, a.flags };

	ANY_ELEMENT(any_element(a.flags), any_one, x, &factor.value)
	return factor;
}

template <int B> GPU_NOINLINE struct gpu_v16 any_scale(struct gpu_v16 v, struct any_factor factor)
{
	struct wide<struct formatted<B>> w = any_start<B>(v, factor.flags);

	GPU_UNROLL for (int i = 0; i < 16 / B; i++)
		w.a[i] = gpu_mul(w.a[i], factor.value);
	return any_finish<B>(w, factor.flags);
}
