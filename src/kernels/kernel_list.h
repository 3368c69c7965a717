/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_KERNEL_LIST_H
#define SHUNT_KERNELS_KERNEL_LIST_H
/*
 * The kernels by name. A kernel is called shunt_<shape>_<op>_<type>; its index is SHUNT_KERNEL(shape, op, type). A shape is one .cu
 * file that instantiates every row. Sums and products do not depend on the sign: signed integers use the unsigned kernel.
 * `ext` is the extremum, larger or smaller by a flag. Types have the numbers of enum shunt_dtype.
 */
#define SHUNT_SHAPE_LIST(X) X(oneshot, 0) X(twoshot, 1) X(chunk, 2)
#define SHUNT_KERNEL_ROWS(X, shape) \
	X(shape, sum, 0, u8, 1) X(shape, sum, 0, u32, 3) X(shape, sum, 0, u64, 5) \
	X(shape, sum, 0, f16, 6) X(shape, sum, 0, f32, 7) X(shape, sum, 0, f64, 8) \
	X(shape, sum, 0, bf16, 9) X(shape, sum, 0, f8e4m3, 10) X(shape, sum, 0, f8e5m2, 11) \
	X(shape, prod, 1, u8, 1) X(shape, prod, 1, u32, 3) X(shape, prod, 1, u64, 5) \
	X(shape, prod, 1, f16, 6) X(shape, prod, 1, f32, 7) X(shape, prod, 1, f64, 8) \
	X(shape, prod, 1, bf16, 9) X(shape, prod, 1, f8e4m3, 10) X(shape, prod, 1, f8e5m2, 11) \
	X(shape, ext, 2, i8, 0) X(shape, ext, 2, u8, 1) X(shape, ext, 2, i32, 2) X(shape, ext, 2, u32, 3) \
	X(shape, ext, 2, i64, 4) X(shape, ext, 2, u64, 5) \
	X(shape, ext, 2, f16, 6) X(shape, ext, 2, f32, 7) X(shape, ext, 2, f64, 8) \
	X(shape, ext, 2, bf16, 9) X(shape, ext, 2, f8e4m3, 10) X(shape, ext, 2, f8e5m2, 11)
#define SHUNT_KERNEL_LIST(X) \
	SHUNT_KERNEL_ROWS(X, oneshot) SHUNT_KERNEL_ROWS(X, twoshot) SHUNT_KERNEL_ROWS(X, chunk)

#define SHUNT_SHAPE_ENUM(name, number) SHUNT_SHAPE_##name = number,
enum shunt_shape { SHUNT_SHAPE_LIST(SHUNT_SHAPE_ENUM) SHUNT_NSHAPES };
#undef SHUNT_SHAPE_ENUM
enum shunt_kop { SHUNT_KOP_SUM, SHUNT_KOP_PROD, SHUNT_KOP_EXT, SHUNT_NKOPS };
enum { SHUNT_NKTYPES = 12 };

#define SHUNT_KERNEL(shape, op, type) (((shape) * SHUNT_NKOPS + (op)) * SHUNT_NKTYPES + (type))
#define SHUNT_NKERNELS (SHUNT_NSHAPES * SHUNT_NKOPS * SHUNT_NKTYPES)
/* A row X(shape, op, op number, type, type number) of the lists above as index and as name:
 *   SHUNT_KERNEL(SHUNT_SHAPE_##shape, opn, typen)   "shunt_" #shape "_" #op "_" #type */
#endif
