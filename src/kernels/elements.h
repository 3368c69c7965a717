/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Elements in 16-byte packs: loads from and stores to user memory, and reductions.
 *
 * Reductions go over the ranks in the order 0 ... n-1, in acc_of<T>::type, so that every kernel gives the same bits.
 */
#include "device/gpu.h"
#include "kernels/kernel_list.h"

typedef int8_t i8;
typedef uint8_t u8;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;
typedef double f64;

/* Accumulator of an element: that of dtypes.def for NCCL's types, else the type itself. */
template <typename T> struct acc_of {
	typedef T type;
};
#define ACC_OF(id, number, name, alias, nccl, element, bytes, kind, exponent, mantissa, acc, ...) \
	template <> struct acc_of<element> { \
		typedef acc type; \
	};
SHUNT_DTYPE_LIST(ACC_OF, )
#undef ACC_OF

/* An element of B bytes; any.h says more. */
template <int B> struct raw_of;
template <int B> struct formatted {
	typename raw_of<B>::type x;
};
template <int B> struct acc_of<struct formatted<B>> {
	typedef f32 type;
};

GPU_FN i8 to_acc(i8 v) { return v; }
GPU_FN u8 to_acc(u8 v) { return v; }
GPU_FN u16 to_acc(u16 v) { return v; }
GPU_FN i32 to_acc(i32 v) { return v; }
GPU_FN u32 to_acc(u32 v) { return v; }
GPU_FN i64 to_acc(i64 v) { return v; }
GPU_FN u64 to_acc(u64 v) { return v; }
GPU_FN f32 to_acc(f32 v) { return v; }
GPU_FN f64 to_acc(f64 v) { return v; }
GPU_FN f32 to_acc(struct f16 v) { return gpu_to_f32(v); }
GPU_FN f32 to_acc(struct bf16 v) { return gpu_to_f32(v); }
GPU_FN f32 to_acc(struct f8e4m3 v) { return gpu_to_f32(v); }
GPU_FN f32 to_acc(struct f8e5m2 v) { return gpu_to_f32(v); }

GPU_FN void from_acc(i8 *d, i8 v) { *d = v; }
GPU_FN void from_acc(u8 *d, u8 v) { *d = v; }
GPU_FN void from_acc(u16 *d, u16 v) { *d = v; }
GPU_FN void from_acc(i32 *d, i32 v) { *d = v; }
GPU_FN void from_acc(u32 *d, u32 v) { *d = v; }
GPU_FN void from_acc(i64 *d, i64 v) { *d = v; }
GPU_FN void from_acc(u64 *d, u64 v) { *d = v; }
GPU_FN void from_acc(f32 *d, f32 v) { *d = v; }
GPU_FN void from_acc(f64 *d, f64 v) { *d = v; }
GPU_FN void from_acc(struct f16 *d, f32 v) { *d = gpu_from_f32<struct f16>(v); }
GPU_FN void from_acc(struct bf16 *d, f32 v) { *d = gpu_from_f32<struct bf16>(v); }
GPU_FN void from_acc(struct f8e4m3 *d, f32 v) { *d = gpu_from_f32<struct f8e4m3>(v); }
GPU_FN void from_acc(struct f8e5m2 *d, f32 v) { *d = gpu_from_f32<struct f8e5m2>(v); }

/* Operators. flags: of the launch; one kernel serves both extrema. A NaN loses against a number. */
struct op_sum {
	template <typename A> GPU_FN_WRAPS A apply(A a, A b, u32 flags) { return (A)(a + b); }
};
struct op_prod {
	template <typename A> GPU_FN_WRAPS A apply(A a, A b, u32 flags) { return (A)(a * b); }
};
struct op_ext {
	template <typename A> GPU_FN A apply(A a, A b, u32 flags)
	{
		bool first = flags & SHUNT_K_MIN ? a < b : a > b;

		/* NOLINTNEXTLINE(misc-redundant-expression): a NaN is what differs from itself */
		return first || b != b ? a : b;
	}
};

struct op_copy {
}; /* no reduction */

typedef struct op_sum op_all; /* formats: the launch says the operator; scales as sums do */

template <typename A, typename B> struct is_same {
	static const bool value = false;
};
template <typename A> struct is_same<A, A> {
	static const bool value = true;
};

template <typename T> union pack {
	struct gpu_v16 v;
	T e[16 / sizeof(T)];
};

/* The element of messages that consist of whole, aligned packs: their kernels have no code for anything else. */
typedef struct gpu_v16 v16;

/* One element of user memory as an unsigned number. */
template <> struct raw_of<1> {
	typedef u8 type;
};
template <> struct raw_of<2> {
	typedef uint16_t type;
};
template <> struct raw_of<4> {
	typedef u32 type;
};
template <> struct raw_of<8> {
	typedef u64 type;
};

/* Loads n elements at p as the low bytes of a pack, and stores them: for unaligned addresses and partial packs. */
template <int BYTES> GPU_FN struct gpu_v16 load_elements(const void *p, u32 n)
{
	typedef typename raw_of<BYTES>::type raw;
	struct gpu_v16 v = { 0, 0 };

	GPU_ROLL for (u32 i = 0; i < n; i++) {
		u32 bit = i * 8 * BYTES;
		u64 x = ((const raw *)p)[i];

		if (bit < 64)
			v.lo |= x << bit;
		else
			v.hi |= x << (bit - 64);
	}
	return v;
}

template <int BYTES> GPU_FN void store_elements(void *p, u32 n, struct gpu_v16 v)
{
	typedef typename raw_of<BYTES>::type raw;

	GPU_ROLL for (u32 i = 0; i < n; i++) {
		u32 bit = i * 8 * BYTES;

		((raw *)p)[i] = (raw)(bit < 64 ? v.lo >> bit : v.hi >> (bit - 64));
	}
}

/* Number of elements among the `width` bytes at byte offset `at` of a buffer of `bytes` bytes. */
template <typename T> GPU_FN u32 elements_left(u64 at, u32 width, u64 bytes)
{
	if (at >= bytes)
		return 0;
	return (u32)((bytes - at < width ? bytes - at : width) / sizeof(T));
}

/*
 * Loads the `width` (8 or 16) bytes at byte offset `at` of a user buffer of `bytes` bytes. Bytes beyond the end are
 * zero. aligned: base is 16-byte aligned, and `at` is a multiple of width. Else loads element by element.
 */
template <typename T> GPU_FN struct gpu_v16 load_user(const void *base, u64 at, u32 width, u64 bytes, bool aligned)
{
	const char *p = (const char *)base + at;
	struct gpu_v16 v = { 0, 0 };

	if (is_same<T, v16>::value ? at < bytes : aligned && at + width <= bytes) {
		if (width == 16)
			return gpu_ld16_stream(p);
		v.lo = *(const u64 *)p;
		return v;
	}
	if constexpr (is_same<T, v16>::value)
		return v;
	else
		return load_elements<sizeof(T)>(p, elements_left<T>(at, width, bytes));
}

template <typename T> GPU_FN void store_user(void *base, u64 at, u32 width, u64 bytes, bool aligned, struct gpu_v16 v)
{
	char *p = (char *)base + at;

	if constexpr (is_same<T, v16>::value) {
		if (at >= bytes)
			return;
	} else if (!aligned || at + width > bytes) {
		store_elements<sizeof(T)>(p, elements_left<T>(at, width, bytes), v);
		return;
	}
	if (width == 16)
		gpu_st16_stream(p, v);
	else
		*(u64 *)p = v.lo;
}

template <typename T> struct wide {
	typename acc_of<T>::type a[16 / sizeof(T)];
};

#include "kernels/any.h"

/* The factor of a pre-multiplied sum (averages of floats are such sums with 1/n). */
template <typename T> GPU_FN typename factor_of<T>::type load_scalar(const struct shunt_kargs &a)
{
	union {
		u64 bits;
		T value;
	} s;

	s.bits = a.scalar;
	if constexpr (is_any<T>::value)
		return any_load_scalar<sizeof(T)>(a);
	else if (a.flags & SHUNT_K_SCALAR_ON_DEVICE)
		return *(const T *)a.scalar;
	else
		return s.value;
}

/*
 * struct acc is the running result of one pack: start with rank 0's, add the others in order, finish. Where the
 * accumulator is the type itself, and for extrema, which round nothing, it stays a pack, and one function out of line
 * serves every use. The types that training sums have inline code (is_hot).
 */
template <typename T, typename Op> struct is_hot {
	static const bool value = false;
};
template <> struct is_hot<struct f16, op_sum> {
	static const bool value = true;
};
template <> struct is_hot<struct bf16, op_sum> {
	static const bool value = true;
};
template <> struct is_hot<f32, op_sum> {
	static const bool value = true;
};

/* Every input is rounded to T after the multiplication: T is the type on the wire. */
template <typename T> GPU_FN_WRAPS struct gpu_v16 scale(struct gpu_v16 v, typename factor_of<T>::type factor)
{
	union pack<T> p;

	p.v = v;
	if constexpr (is_any<T>::value)
		return any_scale<sizeof(T)>(v, factor);
	else GPU_UNROLL
		for (int i = 0; i < (int)(16 / sizeof(T)); i++)
			from_acc(&p.e[i], (typename acc_of<T>::type)(to_acc(p.e[i]) * to_acc(factor)));
	return p.v;
}

template <typename T> GPU_NOINLINE struct gpu_v16 scale_cold(struct gpu_v16 v, typename factor_of<T>::type factor)
{
	return scale<T>(v, factor);
}

template <typename T, typename Op>
GPU_FN struct gpu_v16 premultiply(struct gpu_v16 v, typename factor_of<T>::type factor)
{
	return is_hot<T, Op>::value ? scale<T>(v, factor) : scale_cold<T>(v, factor);
}

template <typename T> GPU_FN void wide_start(struct wide<T> &acc, struct gpu_v16 v)
{
	union pack<T> p;

	p.v = v;
	GPU_UNROLL for (int i = 0; i < (int)(16 / sizeof(T)); i++)
		acc.a[i] = to_acc(p.e[i]);
}

template <typename T, typename Op> GPU_FN void wide_add(struct wide<T> &acc, struct gpu_v16 v, u32 flags)
{
	union pack<T> p;

	p.v = v;
	GPU_UNROLL for (int i = 0; i < (int)(16 / sizeof(T)); i++)
		acc.a[i] = Op::apply(acc.a[i], to_acc(p.e[i]), flags);
}

template <typename T> GPU_FN struct gpu_v16 wide_finish(struct wide<T> &acc)
{
	union pack<T> p;

	GPU_UNROLL for (int i = 0; i < (int)(16 / sizeof(T)); i++)
		from_acc(&p.e[i], acc.a[i]);
	return p.v;
}

template <typename T, typename Op> GPU_NOINLINE struct gpu_v16 combine(struct gpu_v16 a, struct gpu_v16 b, u32 flags)
{
	struct wide<T> acc;

	wide_start(acc, a);
	wide_add<T, Op>(acc, b, flags);
	return wide_finish(acc);
}

template <typename T, typename Op> GPU_NOINLINE void wide_add_cold(struct wide<T> &acc, struct gpu_v16 v, u32 flags)
{
	wide_add<T, Op>(acc, v, flags);
}

/* Accumulator: a pack; registers with inline code; registers with code out of line. */
enum acc_kind { ACC_PACK, ACC_HOT, ACC_COLD };

template <typename T, typename Op> struct acc_kind_of {
	static const enum acc_kind value = is_hot<T, Op>::value                       ? ACC_HOT :
	    is_same<typename acc_of<T>::type, T>::value || is_same<Op, op_ext>::value ? ACC_PACK :
	                                                                                ACC_COLD;
};

template <typename T, typename Op, enum acc_kind K = acc_kind_of<T, Op>::value> struct acc;

template <typename T, typename Op> struct acc<T, Op, ACC_PACK> {
	struct gpu_v16 v;
	GPU_METHOD void start(struct gpu_v16 x, u32) { v = x; }
	GPU_METHOD void add(struct gpu_v16 x, u32 flags) { v = combine<T, Op>(v, x, flags); }
	GPU_METHOD struct gpu_v16 result(u32) { return v; }
};

template <typename T, typename Op> struct acc<T, Op, ACC_HOT> {
	struct wide<T> w;
	GPU_METHOD void start(struct gpu_v16 x, u32) { wide_start(w, x); }
	GPU_METHOD void add(struct gpu_v16 x, u32 flags) { wide_add<T, Op>(w, x, flags); }
	GPU_METHOD struct gpu_v16 result(u32) { return wide_finish(w); }
};

template <int B, typename Op> struct acc<struct formatted<B>, Op, ACC_COLD> {
	struct wide<struct formatted<B>> w;
	GPU_METHOD void start(struct gpu_v16 x, u32 flags) { w = any_start<B>(x, flags); }
	GPU_METHOD void add(struct gpu_v16 x, u32 flags) { w = any_add<B>(w, x, flags); }
	GPU_METHOD struct gpu_v16 result(u32 flags) { return any_finish<B>(w, flags); }
};

template <typename T, typename Op> struct acc<T, Op, ACC_COLD> {
	struct wide<T> w;
	GPU_METHOD void start(struct gpu_v16 x, u32) { wide_start(w, x); }
	GPU_METHOD void add(struct gpu_v16 x, u32 flags) { wide_add_cold<T, Op>(w, x, flags); }
	GPU_METHOD struct gpu_v16 result(u32) { return wide_finish(w); }
};

/* Integer averages divide the wrapped sum once, towards zero. Sums of signed integers use the unsigned types. */
template <typename T> struct average {
	static const bool exists = false;
	GPU_FN T of(T v, u32 n, bool is_signed) { return v; }
};
template <typename U, typename S> struct int_average {
	static const bool exists = true;
	GPU_FN U of(U v, u32 n, bool is_signed) { return is_signed ? (U)((S)v / (S)n) : (U)(v / (U)n); }
};
template <> struct average<u8> : int_average<u8, i8> {
};
template <> struct average<u32> : int_average<u32, i32> {
};
template <> struct average<u64> : int_average<u64, i64> {
};

template <typename T> GPU_NOINLINE struct gpu_v16 divide(struct gpu_v16 v, u32 n, bool is_signed)
{
	union pack<T> p;

	p.v = v;
	for (int i = 0; i < (int)(16 / sizeof(T)); i++)
		p.e[i] = average<T>::of(p.e[i], n, is_signed);
	return p.v;
}

template <typename T, typename Op> GPU_FN struct gpu_v16 acc_finish(struct acc<T, Op> &acc, const struct shunt_kargs &a)
{
	struct gpu_v16 v = acc.result(a.flags);

	return average<T>::exists && is_same<Op, op_sum>::value && (a.flags & SHUNT_K_DIVIDE) ?
	    divide<T>(v, a.nranks, a.flags & SHUNT_K_SIGNED) :
	    v;
}
