/* SPDX-License-Identifier: MIT */
/* What the rows of collectives.def, dtypes.def and ops.def give, beside what NCCL's documentation says. */
#include "tests/support/test.h"
#include "base/coll.h"
#include "shunt/shunt.h"

enum { NRANKS = 4, ROOT = 2, OTHER = 1 };

/*
 * Parts that a root and another rank send and receive among 4 ranks; the part of the send and of the receive buffer
 * that rank 1 has in place; whether it has a root, reduces, is a message.
 */
static const struct {
	const char *name;
	int root_sends, root_receives, other_sends, other_receives;
	int own_sent, own_received;
	bool rooted, reduces, message;
} wanted[SHUNT_NKINDS] = {
	{ "allreduce", 1, 1, 1, 1, 0, 0, .reduces = true },
	{ "reduce", 1, 1, 1, 0, 0, 0, .rooted = true, .reduces = true },
	{ "broadcast", 1, 1, 0, 1, 0, 0, .rooted = true },
	{ "allgather", 1, 4, 1, 4, 0, 1 },
	{ "reducescatter", 4, 1, 4, 1, 1, 0, .reduces = true },
	{ "alltoall", 4, 4, 4, 4, 1, 1 },
	{ "gather", 1, 4, 1, 0, 0, 1, .rooted = true },
	{ "scatter", 4, 1, 0, 1, 1, 0, .rooted = true },
	{ "send", 1, 0, 1, 0, 0, 0, .message = true },
	{ "recv", 0, 1, 0, 1, 0, 0, .message = true },
};

static int parts(enum shunt_kind kind, enum shunt_side side, int rank)
{
	return shunt_kind_has_side(kind, side, rank == ROOT) ? (int)shunt_kind_parts(kind, side, NRANKS) : 0;
}

TEST(test_kinds_have_nccls_sides)
{
	for (int i = 0; i < SHUNT_NKINDS; i++) {
		enum shunt_kind k = (enum shunt_kind)i;

		assert_string_equal(shunt_kind_name(k), wanted[i].name);
		assert_int_equal(shunt_kind_find(wanted[i].name, strlen(wanted[i].name)), i);
		assert_int_equal(parts(k, SHUNT_SIDE_SEND, ROOT), wanted[i].root_sends);
		assert_int_equal(parts(k, SHUNT_SIDE_RECV, ROOT), wanted[i].root_receives);
		assert_int_equal(parts(k, SHUNT_SIDE_SEND, OTHER), wanted[i].other_sends);
		assert_int_equal(parts(k, SHUNT_SIDE_RECV, OTHER), wanted[i].other_receives);
		assert_int_equal(shunt_kind_part_of(k, SHUNT_SIDE_SEND, OTHER), wanted[i].own_sent);
		assert_int_equal(shunt_kind_part_of(k, SHUNT_SIDE_RECV, OTHER), wanted[i].own_received);
		assert_int_equal(shunt_kind_has_root(k), wanted[i].rooted);
		assert_int_equal(shunt_kind_reduces(k), wanted[i].reduces);
		assert_int_equal(shunt_kind_is_p2p(k), wanted[i].message);
		assert_int_equal(shunt_kind_has_parts(k), wanted[i].root_sends > 1 || wanted[i].root_receives > 1);
	}
}

TEST(test_calls_are_in_place_where_a_rank_has_its_part)
{
	static char buffer[64];

	assert_true(shunt_kind_in_place(SHUNT_ALLREDUCE, buffer, buffer, 8, 3));
	assert_false(shunt_kind_in_place(SHUNT_ALLREDUCE, buffer, buffer + 8, 8, 1));
	assert_true(shunt_kind_in_place(SHUNT_ALLGATHER, buffer + 24, buffer, 8, 3));
	assert_false(shunt_kind_in_place(SHUNT_ALLGATHER, buffer, buffer, 8, 3));
	assert_true(shunt_kind_in_place(SHUNT_SCATTER, buffer, buffer + 16, 8, 2));
	assert_false(shunt_kind_in_place(SHUNT_SCATTER, buffer, buffer + 8, 8, 2));
}

TEST(test_types_have_nccls_sizes)
{
	static const struct {
		const char *name;
		int bytes;
		bool is_float, is_signed;
	} types[SHUNT_NDTYPES] = { { "int8", 1, false, true }, { "uint8", 1 }, { "int32", 4, false, true },
		{ "uint32", 4 }, { "int64", 8, false, true }, { "uint64", 8 }, { "float16", 2, true },
		{ "float32", 4, true }, { "float64", 8, true }, { "bfloat16", 2, true }, { "float8e4m3", 1, true },
		{ "float8e5m2", 1, true } };
	static const char *const ops[SHUNT_NREDOPS] = { "sum", "prod", "max", "min", "avg", "premulsum" };

	for (int i = 0; i < SHUNT_NDTYPES; i++) {
		enum shunt_dtype t = (enum shunt_dtype)i;
		const struct shunt_dtype_row *row = &shunt_dtype_rows[i];

		assert_string_equal(shunt_dtype_name(t), types[i].name);
		assert_int_equal(shunt_dtype_bytes[i], types[i].bytes);
		assert_int_equal(shunt_dtype_is_float(t), types[i].is_float);
		assert_int_equal(shunt_dtype_is_signed(t), types[i].is_signed);
		if (types[i].is_float)
			assert_int_equal(1 + row->exponent + row->mantissa, 8 * types[i].bytes);
	}
	for (int i = 0; i < SHUNT_NREDOPS; i++)
		assert_string_equal(shunt_redop_name((enum shunt_redop)i), ops[i]);
}

TEST(test_formats_are_of_types_and_accumulators)
{
	for (int i = SHUNT_NDTYPES; i < SHUNT_NFORMATS; i++) {
		const struct shunt_dtype_row *row = &shunt_dtype_rows[i], *element = &shunt_dtype_rows[row->element];

		assert_true(shunt_dtype_is_float((enum shunt_dtype)i));
		assert_int_equal(shunt_dtype_bytes[i], shunt_dtype_bytes[row->element]);
		assert_int_equal(row->exponent, element->exponent);
		assert_int_equal(row->mantissa, element->mantissa);
		assert_int_equal(row->bias, element->bias);
		assert_int_equal(row->has_infinity, element->has_infinity);
		assert_int_equal(shunt_format_find(row->element, row->accumulator), i);
	}
	for (int i = 0; i < SHUNT_NDTYPES; i++) { /* what nobody asks for stays NCCL's */
		assert_int_equal(shunt_format_of((enum shunt_dtype)i, false, SHUNT_ACCUMULATE_FP32), i);
		assert_int_equal(shunt_dtypes_with_formats(1u << i) & ((1u << SHUNT_NDTYPES) - 1), 1u << i);
	}
	assert_int_equal(shunt_format_of(SHUNT_U8, true, SHUNT_ACCUMULATE_FP32), SHUNT_F8E4M3B15);
	assert_int_equal(shunt_format_of(SHUNT_I8, true, SHUNT_ACCUMULATE_OWN), SHUNT_I8);
	assert_int_equal(shunt_format_of(SHUNT_F16, false, SHUNT_ACCUMULATE_FP16), SHUNT_F16_OWN);
	assert_int_equal(shunt_format_of(SHUNT_BF16, false, SHUNT_ACCUMULATE_FP16), -1);
	assert_int_equal(shunt_format_of(SHUNT_F64, false, SHUNT_ACCUMULATE_FP16), SHUNT_F64);
	assert_int_equal(shunt_dtypes_with_formats(1u << SHUNT_BF16), 1u << SHUNT_BF16 | 1u << SHUNT_BF16_OWN);
}

TEST(test_reciprocals_are_rounded_to_nearest_even)
{
	assert_int_equal(shunt_dtype_reciprocal(SHUNT_F16, 3), 0x3555);
	assert_int_equal(shunt_dtype_reciprocal(SHUNT_BF16, 3), 0x3eab);
	assert_int_equal(shunt_dtype_reciprocal(SHUNT_F32, 3), 0x3eaaaaab);
	assert_int_equal(shunt_dtype_reciprocal(SHUNT_F8E4M3, 2), 0x30);
	assert_int_equal(shunt_dtype_reciprocal(SHUNT_F8E5M2, 4), 0x34);
	assert_int_equal(shunt_dtype_reciprocal(SHUNT_F8E4M3B15, 4), 0x68);
}
