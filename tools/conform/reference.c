/* SPDX-License-Identifier: MIT */
/* Expected bytes after a program, in plain C, and the comparison with them. */
#include <math.h>
#include "tools/common/libc.h"
#include "tools/conform/conform.h"
#include "tools/common/reference.h"

/* Bits of the mantissa; 0: an integer. */
static int mantissa_of(enum shunt_dtype dtype)
{
	return shunt_dtype_rows[dtype].mantissa;
}

/* The exponent of the smallest subnormal; 0 for integers. */
static int tiny_of(enum shunt_dtype dtype)
{
	return shunt_dtype_is_float(dtype) ? 1 - shunt_dtype_rows[dtype].bias - mantissa_of(dtype) : 0;
}

static bool is_p2p(const struct conform_step *s)
{
	return s->coll == BENCH_COLL_SEND || s->coll == BENCH_COLL_RECV;
}

void conform_scalar(enum shunt_dtype dtype, int rank, void *scalar)
{
	/* Every type has these values: no float is rounded. */
	ref_from_double(scalar, dtype, mantissa_of(dtype) ? 0.5 * (rank % 3 + 1) : rank % 3 + 1);
}

/* ---- inputs ---- */

static void special_values_fill(void *buf, size_t count, enum shunt_dtype dtype, enum shunt_redop redop, uint64_t *seed)
{
	/* The sign of a zero after min or max is undefined. */
	const double values[] = { NAN, INFINITY, -INFINITY, redop == SHUNT_SUM ? -0.0 : 1.5, 0.0,
		ldexp(1, tiny_of(dtype)), -1.25, 3 };

	for (size_t i = 0; i < count; i++)
		ref_from_double((char *)buf + i * shunt_dtype_bytes[dtype], dtype, values[ref_random(seed) % 8]);
}

static void step_input_fill(
    const struct conform_case *c, const struct conform_step *s, size_t elements, void *buf, uint64_t seed)
{
	size_t bytes = shunt_dtype_bytes[s->dtype];
	bool any_bits = !bench_colls[s->coll].reduces;

	if (c->data == CONFORM_SPECIAL && mantissa_of(s->dtype)) {
		special_values_fill(buf, elements, s->dtype, s->redop, &seed);
	} else if (c->data == CONFORM_WIDE && mantissa_of(s->dtype) && s->redop != SHUNT_PROD) {
		/* Magnitudes so different that another order of the sum rounds differently. */
		int range = shunt_dtype_bytes[s->dtype] == 1 ? 3 : 11;

		for (size_t i = 0; i < elements; i++) {
			uint64_t x = ref_random(&seed);

			ref_from_double((char *)buf + i * bytes, s->dtype,
			    ldexp((x & 1 ? -1 : 1) * (1 + (double)(x >> 32) / 4.3e9),
			        (int)(x >> 1 & 0xffff) % (2 * range + 1) - range));
		}
	} else if (any_bits) {
		/* Copied, not computed with: a NaN of any kind must keep its bits. */
		for (size_t i = 0; i < elements; i++) {
			uint64_t x = ref_random(&seed);

			memcpy((char *)buf + i * bytes, &x, bytes);
		}
	} else if (s->redop == SHUNT_PROD && mantissa_of(s->dtype)) {
		for (size_t i = 0; i < elements; i++) {
			uint64_t x = ref_random(&seed);

			ref_from_double(
			    (char *)buf + i * bytes, s->dtype, (x & 1 ? -1 : 1) * (0.75 + (double)(x >> 32) / 8.6e9));
		}
	} else {
		ref_fill(buf, elements, s->dtype, &seed);
	}
}

void conform_image_fill(
    const struct conform_case *c, const struct conform_program *s, int rank, struct conform_image *image)
{
	uint64_t seed = conform_hash_mix(c->seed ^ ((uint64_t)rank << 40));

	for (size_t i = 0; i < s->send_bytes; i++)
		image->send[i] = (unsigned char)(i * 7 + seed);
	memset(image->recv, CONFORM_POISON, s->recv_bytes);
	for (size_t i = 0; i < s->n; i++) {
		const struct conform_step *step = &s->steps[i];
		int members[RANKS_MAX], me;
		size_t blocks = 1;

		if (step->kind != CONFORM_CALL || step->send == CONFORM_NULL)
			continue;
		if (bench_colls[step->coll].send_many)
			blocks = (size_t)conform_comm_members(step->comm, rank, c->nranks, members, &me);
		step_input_fill(c, step, step->count * blocks,
		    (step->in_place ? image->recv : image->send) + step->send, conform_hash_mix(seed + i + 1));
		for (size_t block = 0; block < blocks && step->common; block++)
			step_input_fill(c, step, step->common,
			    (step->in_place ? image->recv : image->send) + step->send +
			        (block * step->count + step->common_at) * shunt_dtype_bytes[step->dtype],
			    conform_hash_mix(seed));
	}
}

/* ---- results ---- */

static const unsigned char *step_input(const struct conform_step *s, const struct conform_image *image)
{
	return (s->in_place ? image->recv : image->send) + s->send;
}

/* The n-th collective of a communicator, or the n-th message to or from a peer. */
static const struct conform_step *step_find(
    const struct conform_program *program, enum conform_comm comm, int coll, int peer, size_t occurrence)
{
	for (size_t i = 0; i < program->n; i++) {
		const struct conform_step *s = &program->steps[i];

		if (!conform_step_is_call(s) || s->comm != comm)
			continue;
		if (coll < 0 ? is_p2p(s) : s->coll != (enum bench_coll_id)coll || s->root != peer)
			continue;
		if (!occurrence--)
			return s;
	}
	return NULL;
}

/* The n ranks of a step's communicator; I am number `me`. */
struct members {
	int n, me;
	int world[RANKS_MAX];                 /* their numbers in the world */
	const unsigned char *send[RANKS_MAX]; /* their inputs; of a receive the sender's only */
};

/* The members of my step i, and their steps that belong to it. */
static int step_members(const struct conform_program *programs, const struct conform_image *images, int rank,
    int nranks, size_t i, struct members *m_p)
{
	const struct conform_step *s = &programs[rank].steps[i];
	size_t occurrence = 0;

	memset(m_p, 0, sizeof(*m_p));
	m_p->n = conform_comm_members(s->comm, rank, nranks, m_p->world, &m_p->me);
	for (size_t k = 0; k < i; k++) {
		const struct conform_step *o = &programs[rank].steps[k];

		if (conform_step_is_call(o) && o->comm == s->comm)
			occurrence += is_p2p(s) ? o->coll == s->coll && o->root == s->root : !is_p2p(o);
	}
	for (int m = 0; m < m_p->n; m++) {
		bool p2p = is_p2p(s);
		const struct conform_step *theirs;

		if (p2p && m != s->root)
			continue;
		theirs = step_find(&programs[m_p->world[m]], s->comm, p2p ? BENCH_COLL_SEND : -1, m_p->me, occurrence);
		if (!theirs || theirs->count != s->count || theirs->dtype != s->dtype)
			return -EPROTO;
		m_p->send[m] = step_input(theirs, &images[m_p->world[m]]);
	}
	return 0;
}

static void reference_reduce(const struct conform_step *s, const struct members *members,
    const struct conform_member *place, size_t from_block, unsigned char *out)
{
	const void *in[RANKS_MAX], *scalars[RANKS_MAX];
	uint64_t scalar[RANKS_MAX] = { 0 };
	int hosts[RANKS_MAX];

	for (int m = 0; m < members->n; m++) {
		hosts[m] = place->nhosts ? members->world[m] * place->nhosts / place->nranks : 0;
		in[m] = members->send[m] + from_block * s->count * shunt_dtype_bytes[s->dtype];
		conform_scalar(s->dtype, members->world[m], &scalar[m]);
		scalars[m] = &scalar[m];
	}
	ref_allreduce_over(out, in, hosts, members->n, s->count, s->dtype, s->redop, scalars);
}

static int step_expect(const struct conform_program *programs, const struct conform_image *images,
    const struct conform_member *place, size_t i, unsigned char *recv)
{
	const struct conform_step *s = &programs[place->rank].steps[i];
	const struct bench_coll *coll = &bench_colls[s->coll];
	struct members members;
	int err;
	size_t bytes = s->count * shunt_dtype_bytes[s->dtype];

	if (!conform_step_is_call(s) || s->coll == BENCH_COLL_SEND || s->recv == CONFORM_NULL)
		return 0;
	err = step_members(programs, images, place->rank, place->nranks, i, &members);
	if (err || !bench_coll_has_recv(coll, members.me, s->root))
		return err;
	for (int block = 0; block < (coll->recv_many ? members.n : 1); block++) {
		unsigned char *out = recv + s->recv + (size_t)block * bytes;
		struct bench_source from = bench_coll_source(coll, members.me, members.n, s->root, block);

		if (s->coll == BENCH_COLL_RECV)
			from.rank = s->root;
		if (from.rank < 0)
			reference_reduce(s, &members, place, (size_t)from.block, out);
		else
			/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): step_members() found all of them */
			memcpy(out, members.send[from.rank] + (size_t)from.block * bytes, bytes);
	}
	return 0;
}

int conform_expect(const struct conform_program *programs, const struct conform_image *images,
    const struct conform_member *place, unsigned char *recv)
{
	const struct conform_program *mine = &programs[place->rank];

	memcpy(recv, images[place->rank].recv, mine->recv_bytes);
	for (size_t i = 0; i < mine->n; i++) {
		int err = step_expect(programs, images, place, i, recv);

		if (err)
			return err;
	}
	return 0;
}

/* ---- check ---- */

/*
 * Largest error of a float result, for any order of the reduction and any place of rounding: n - 1 operations, a
 * product, and the last rounding, half a unit of the sum of absolute values each; doubled, and one for the reference.
 */
static double error_bound(
    const struct conform_step *s, const struct members *members, size_t from_block, size_t element, double want)
{
	double size = 0, scalar_value;
	uint64_t scalar;

	if (s->redop == SHUNT_MAX || s->redop == SHUNT_MIN)
		return 0;
	for (int m = 0; m < members->n; m++) {
		size_t at = (from_block * s->count + element) * shunt_dtype_bytes[s->dtype];
		/* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): likewise */
		const unsigned char *in = members->send[m] + at;

		conform_scalar(s->dtype, members->world[m], &scalar);
		scalar_value = s->redop == SHUNT_PREMUL ? ref_to_double(&scalar, s->dtype) :
		    s->redop == SHUNT_AVG               ? 1.0 / members->n :
		                                          1;
		size += fabs(ref_to_double(in, s->dtype) * scalar_value);
	}
	if (s->redop == SHUNT_PROD)
		size = fabs(want) * 2;
	return (members->n + 3) * (ldexp(size, -mantissa_of(s->dtype)) + ldexp(1, tiny_of(s->dtype)));
}

static bool within_tolerance(double got, double want, double tolerance)
{
	if (isnan(want) || isnan(got))
		return isnan(want) && isnan(got);
	return got == want || fabs(got - want) <= tolerance;
}

struct check {
	const struct conform_program *programs;
	const struct conform_image *images;
	int rank, nranks;
	bool strict;
	char *text;
	size_t text_bytes;
};

static void step_describe(const struct check *k, size_t i, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/*
 * Checks the float result of step i. If it is correct, the function copies the expected bytes over it, for the later
 * comparison of all bytes.
 */
static bool floats_check(
    const struct check *k, size_t i, const unsigned char *want, unsigned char *got, const char *reference_name)
{
	const struct conform_step *s = &k->programs[k->rank].steps[i];
	const struct bench_coll *coll = &bench_colls[s->coll];
	struct members members;
	struct bench_source from;
	size_t element = shunt_dtype_bytes[s->dtype];

	if (step_members(k->programs, k->images, k->rank, k->nranks, i, &members))
		return true; /* reported before */
	from = bench_coll_source(coll, members.me, members.n, s->root, 0);
	for (size_t e = 0; e < s->count; e++) {
		unsigned char *g = got + s->recv + e * element;
		const unsigned char *w = want + s->recv + e * element;
		double gv, wv, tolerance;

		if (!memcmp(g, w, element))
			continue;
		gv = ref_to_double(g, s->dtype);
		wv = ref_to_double(w, s->dtype);
		tolerance = k->strict ? 0 : error_bound(s, &members, (size_t)from.block, e, wv);
		/* strict: the same bits, but any NaN equals any other. */
		if (k->strict ? !(isnan(gv) && isnan(wv)) : !within_tolerance(gv, wv, tolerance)) {
			step_describe(
			    k, i, "element %zu is %.9g, not %.9g%s (+- %.3g)", e, gv, wv, reference_name, tolerance);
			return false;
		}
		memcpy(g, w, element);
	}
	return true;
}

static void step_describe(const struct check *k, size_t i, const char *fmt, ...)
{
	const struct conform_step *s = &k->programs[k->rank].steps[i];
	int n = snprintf(k->text, k->text_bytes, "step %zu (%s of %zu %s): ", i, bench_colls[s->coll].name, s->count,
	    shunt_dtype_name(s->dtype));
	va_list args;

	va_start(args, fmt);
	vsnprintf(k->text + n, k->text_bytes - (size_t)n, fmt, args);
	va_end(args);
}

/* Names the call of a byte of the recv buffer, or the call next to it. */
static void byte_describe(
    const struct check *k, size_t at, const unsigned char *want, const unsigned char *got, const char *reference_name)
{
	const struct conform_program *program = &k->programs[k->rank];
	size_t nearest = 0;

	if (!program->n) {
		snprintf(k->text, k->text_bytes, "byte %zu of the results was written, and there was no call", at);
		return;
	}
	for (size_t i = 0; i < program->n; i++) {
		const struct conform_step *s = &program->steps[i];
		size_t element = shunt_dtype_bytes[s->dtype];
		int members[RANKS_MAX], me, n = conform_comm_members(s->comm, k->rank, k->nranks, members, &me);
		size_t bytes = s->count * element * (size_t)(bench_colls[s->coll].recv_many ? n : 1);

		if (s->kind != CONFORM_CALL || s->recv == CONFORM_NULL || s->recv > at)
			continue;
		nearest = i;
		if (s->simulated && at < s->recv + bytes) {
			step_describe(k, i, "its group was only simulated, and its result was written");
			return;
		}
		if (at < s->recv + bytes && bench_coll_has_recv(&bench_colls[s->coll], me, s->root)) {
			size_t e = (at - s->recv) / element;
			uint64_t g = 0, w = 0;

			memcpy(&g, got + s->recv + e * element, element);
			memcpy(&w, want + s->recv + e * element, element);
			step_describe(k, i, "element %zu is 0x%llx, not 0x%llx%s", e, (unsigned long long)g,
			    (unsigned long long)w, reference_name);
			return;
		}
	}
	if (program->steps[nearest].recv == CONFORM_NULL || program->steps[nearest].kind != CONFORM_CALL) {
		snprintf(k->text, k->text_bytes,
		    "byte %zu of the results, which belongs to no call, is 0x%02x, not 0x%02x%s", at, got[at], want[at],
		    reference_name);
		return;
	}
	step_describe(k, nearest, "a byte that is no result was written: at %lld from its result, 0x%02x, not 0x%02x%s",
	    (long long)at - (long long)program->steps[nearest].recv, got[at], want[at], reference_name);
}

static bool results_check(
    const struct check *k, const unsigned char *want, unsigned char *got, const char *reference_name)
{
	const struct conform_program *program = &k->programs[k->rank];

	for (size_t i = 0; i < program->n; i++) {
		const struct conform_step *s = &program->steps[i];
		int members[RANKS_MAX], me = 0;

		if (!conform_step_is_call(s) || !bench_colls[s->coll].reduces || !mantissa_of(s->dtype) ||
		    s->recv == CONFORM_NULL)
			continue;
		conform_comm_members(s->comm, k->rank, k->nranks, members, &me);
		if (bench_coll_has_recv(&bench_colls[s->coll], me, s->root) &&
		    !floats_check(k, i, want, got, reference_name))
			return false;
	}
	if (!memcmp(got, want, program->recv_bytes))
		return true;
	for (size_t at = 0; at < program->recv_bytes; at++)
		if (got[at] != want[at]) {
			byte_describe(k, at, want, got, reference_name);
			break;
		}
	return false;
}

bool conform_check(const struct conform_claim *c, char *text, size_t text_bytes)
{
	struct check k = { c->programs, c->images, c->rank, c->nranks, c->strict, text, text_bytes };
	const unsigned char *input = c->images[c->rank].send;
	char reference_name[64] = "";

	if (memcmp(c->got->send, input, c->programs[c->rank].send_bytes)) {
		size_t at = 0;

		while (c->got->send[at] == input[at])
			at++;
		snprintf(text, text_bytes, "byte %zu of the inputs was written", at);
		return false;
	}
	if (!c->like)
		return results_check(&k, c->expected, c->got->recv, reference_name);
	/* Two correct results may differ by rounding. */
	k.strict = false;
	snprintf(reference_name, sizeof(reference_name), " as %s has it", c->like_name);
	return results_check(&k, c->like, c->got->recv, reference_name);
}
