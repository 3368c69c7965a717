/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "core/config.h"
#include "core/log.h"
#include "kernels/kargs.h"

#define KB ((uint64_t)1 << 10)
#define MB ((uint64_t)1 << 20)

/*
 * Which algorithm up to which size. Rows are tried in order; the first whose place, ranks and size fit is taken; no row: NCCL. Values for 2
 * and 4 ranks are measured on H200 (docs/gpu-log.md); for 3 and 5 to 8 ranks they are estimates from those.
 */
#define ANY_KIND SHUNT_NKINDS /* that has an algorithm of this name */

enum place { GPU, GPU_ALONE, SIM }; /* ALONE: there is no NCCL to forward to */

struct range {
	enum shunt_kind kind;
	enum place place;
	uint8_t nmin, nmax;
	uint64_t upto; /* bytes of count elements (of one part, where there are parts), inclusive */
	const char *algo;
};

static const struct range ranges[] = {
	{ SHUNT_ALLREDUCE, GPU, 2, 2, 1 * MB, "oneshot" },
	{ SHUNT_ALLREDUCE, GPU, 3, 4, 128 * KB, "oneshot" },
	{ SHUNT_ALLREDUCE, GPU, 5, 8, 32 * KB, "oneshot" },
	{ SHUNT_ALLREDUCE, GPU, 2, 2, 64 * MB, "twoshot" },
	{ SHUNT_ALLREDUCE, GPU, 3, 8, 16 * MB, "twoshot" },
	{ SHUNT_ALLREDUCE, GPU_ALONE, 2, 8, UINT64_MAX, "twoshot" },
	{ SHUNT_ALLGATHER, GPU, 2, 2, 32 * MB, "exchange" },
	{ SHUNT_ALLGATHER, GPU, 3, 4, 4 * MB, "exchange" },
	{ SHUNT_ALLGATHER, GPU, 5, 8, 64 * KB, "exchange" },
	{ SHUNT_REDUCESCATTER, GPU, 2, 2, 512 * KB, "exchange" },
	{ SHUNT_REDUCESCATTER, GPU, 3, 4, 128 * KB, "exchange" },
	{ SHUNT_REDUCESCATTER, GPU, 5, 8, 16 * KB, "exchange" },
	{ SHUNT_ALLTOALL, GPU, 2, 2, 16 * MB, "exchange" },
	{ SHUNT_ALLTOALL, GPU, 3, 4, 4 * MB, "exchange" },
	{ SHUNT_ALLTOALL, GPU, 5, 8, 64 * KB, "exchange" },
	{ SHUNT_BROADCAST, GPU, 2, 2, 8 * MB, "exchange" },
	{ SHUNT_BROADCAST, GPU, 3, 4, 256 * KB, "exchange" },
	{ SHUNT_BROADCAST, GPU, 5, 8, 64 * KB, "exchange" },
	{ SHUNT_REDUCE, GPU, 2, 2, 512 * KB, "exchange" },
	{ SHUNT_REDUCE, GPU, 3, 4, 256 * KB, "exchange" },
	{ SHUNT_REDUCE, GPU, 5, 8, 16 * KB, "exchange" },
	{ SHUNT_GATHER, GPU, 2, 2, 4 * MB, "exchange" },
	{ SHUNT_GATHER, GPU, 3, 4, 4 * MB, "exchange" },
	{ SHUNT_GATHER, GPU, 5, 8, 64 * KB, "exchange" },
	{ SHUNT_SCATTER, GPU, 2, 2, 4 * MB, "exchange" },
	{ SHUNT_SCATTER, GPU, 3, 4, 1 * MB, "exchange" },
	{ SHUNT_SCATTER, GPU, 5, 8, 64 * KB, "exchange" },
	{ SHUNT_SEND, GPU, 2, 2, 16 * MB, "exchange" },
	{ SHUNT_SEND, GPU, 3, 4, 8 * MB, "exchange" },
	{ SHUNT_SEND, GPU, 5, 8, 64 * KB, "exchange" },
	{ ANY_KIND, GPU_ALONE, 2, 8, UINT64_MAX, "exchange" },
	{ ANY_KIND, SIM, 2, 8, UINT64_MAX, "exchange" },
	{ SHUNT_ALLREDUCE, SIM, 2, 8, 16 * KB, "oneshot" },
	{ SHUNT_ALLREDUCE, SIM, 2, 8, 256 * KB, "twoshot" },
	{ SHUNT_ALLREDUCE, SIM, 2, 8, UINT64_MAX, "chunk" },
};

static bool range_fits(const struct range *r, const struct shunt_scope *scope, uint64_t bytes)
{
	bool place = scope->sim ? r->place == SIM : r->place == GPU || (r->place == GPU_ALONE && scope->standalone);

	return place && scope->nranks >= r->nmin && scope->nranks <= r->nmax && bytes <= r->upto;
}

/* SHUNT_ALGO, parsed: kind:from-to:name. A range without end is open. */
struct forced {
	enum shunt_kind kind;
	uint64_t from, to;
	const struct shunt_algo *algo; /* NULL: nccl */
};

static struct forced *forced;
static size_t nforced;
static pthread_once_t forced_once = PTHREAD_ONCE_INIT;

const struct shunt_algo *shunt_algo_row(size_t i)
{
	static const struct shunt_algo *const files[] = { shunt_allreduce_algos, shunt_exchange_algos };

	for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++)
		for (const struct shunt_algo *a = files[f]; a->name; a++)
			if (!i--)
				return a;
	return NULL;
}

static const struct shunt_algo *algo_find(enum shunt_kind kind, const char *name)
{
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		if (a->kind == kind && !strcmp(a->name, name))
			return a;
	return NULL;
}

bool shunt_kind_reduces(enum shunt_kind kind)
{
	return kind == SHUNT_ALLREDUCE || kind == SHUNT_REDUCE || kind == SHUNT_REDUCESCATTER;
}

static bool kind_find(const char *name, enum shunt_kind *kind_p)
{
	for (int k = 0; k < SHUNT_NKINDS; k++)
		if (!strcmp(shunt_kind_name(k), name)) {
			*kind_p = k;
			return true;
		}
	return false;
}

/* "64k", "1m", "" (open). */
static bool parse_bytes(const char *s, uint64_t open, uint64_t *bytes_p)
{
	static const char units[] = "kmg";
	char *end;

	if (!*s || !strcmp(s, "inf")) {
		*bytes_p = open;
		return true;
	}
	errno = 0;
	uint64_t v = strtoull(s, &end, 10);
	if (end == s || errno || *s == '-')
		return false;
	if (*end) {
		const char *u = strchr(units, *end | 0x20);

		if (!u || end[1])
			return false;
		int shift = 10 * (int)(u - units + 1);
		if (v > UINT64_MAX >> shift)
			return false;
		v <<= shift;
	}
	*bytes_p = v;
	return true;
}

static bool parse_rule(char *rule, struct forced *f)
{
	char *range = strchr(rule, ':'), *name = range ? strchr(range + 1, ':') : NULL, *dash;

	if (!name)
		return false;
	*range++ = 0;
	*name++ = 0;
	dash = strchr(range, '-');
	if (!dash)
		return false;
	*dash++ = 0;
	if (!kind_find(rule, &f->kind) || !parse_bytes(range, 0, &f->from) || !parse_bytes(dash, UINT64_MAX, &f->to))
		return false;
	f->algo = algo_find(f->kind, name);
	return f->algo || !strcmp(name, "nccl");
}

static void forced_parse(void)
{
	const char *text = shunt_config()->algo;
	char *copy, *rule, *save = NULL;

	if (!*text)
		return;
	copy = strdup(text);
	forced = calloc(strlen(text) / 2 + 1, sizeof(*forced));
	if (!copy || !forced) {
		free(copy);
		return;
	}
	for (rule = strtok_r(copy, ",", &save); rule; rule = strtok_r(NULL, ",", &save)) {
		size_t at = rule - copy, len = strlen(rule);

		if (parse_rule(rule, &forced[nforced]))
			nforced++;
		else
			shunt_warn("SHUNT_ALGO: cannot use \"%.*s\"; wanted kind:from-to:name, e.g. allreduce:0-64k:oneshot, with a name that "
			    "`shunt info` lists, or nccl", (int)len, text + at);
	}
	free(copy);
}

void shunt_select_check(void)
{
	pthread_once(&forced_once, forced_parse);
}

static bool forced_find(enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p)
{
	for (size_t i = 0; i < nforced; i++)
		if (forced[i].kind == kind && bytes >= forced[i].from && bytes < forced[i].to) {
			*algo_p = forced[i].algo;
			return true;
		}
	return false;
}

/* 1/n in a float format of `mant` mantissa bits: rounded to nearest even as every converter does. Normal for all n <= 8. */
static uint64_t reciprocal_bits(int n, int mant, int bias)
{
	double v = 1.0 / n;
	int exp = 0;
	uint64_t m;

	while (v < 1) {
		v *= 2;
		exp--;
	}
	double scaled = (v - 1) * (double)((uint64_t)1 << mant);
	m = (uint64_t)scaled;
	double rest = scaled - (double)m;
	if (rest > 0.5 || (rest == 0.5 && (m & 1)))
		m++; /* a carry into the exponent is right */
	return ((uint64_t)(exp + bias) << mant) + m;
}

static const struct { uint8_t mant, bias; } float_format[SHUNT_NDTYPES] = {
	[SHUNT_F16] = { 10, 15 }, [SHUNT_BF16] = { 7, 127 }, [SHUNT_F8E4M3] = { 3, 7 }, [SHUNT_F8E5M2] = { 2, 15 },
};

uint64_t shunt_algo_reciprocal(enum shunt_dtype dtype, int n)
{
	union { float f; uint32_t u; } f = { .f = 0 };
	union { double d; uint64_t u; } d = { .d = 1.0 / n };

	if (dtype == SHUNT_F64)
		return d.u;
	if (dtype == SHUNT_F32) {
		f.f = (float)(1.0 / n);
		return f.u;
	}
	return reciprocal_bits(n, float_format[dtype].mant, float_format[dtype].bias);
}

static enum shunt_dtype unsigned_of(enum shunt_dtype dtype)
{
	return dtype == SHUNT_I8 || dtype == SHUNT_I32 || dtype == SHUNT_I64 ? dtype + 1 : dtype;
}

#define HOT_BIT(shape, op, opn, type, typen) | 1u << typen
/* Types whose sums have kernels for few ranks. */
static const unsigned hot_sums = 0 SHUNT_HOT_ROWS(HOT_BIT, any);
#undef HOT_BIT

bool shunt_algo_hot(enum shunt_redop redop, enum shunt_dtype dtype)
{
	return (redop == SHUNT_SUM || redop == SHUNT_AVG || redop == SHUNT_PREMUL) && (hot_sums >> dtype & 1);
}

unsigned shunt_algo_kernel(const struct shunt_algo *algo, enum shunt_kind kind, int nranks, enum shunt_redop redop, enum shunt_dtype dtype)
{
	static const enum shunt_kop kops[SHUNT_NREDOPS] = {
		[SHUNT_SUM] = SHUNT_KOP_SUM, [SHUNT_AVG] = SHUNT_KOP_SUM, [SHUNT_PREMUL] = SHUNT_KOP_SUM,
		[SHUNT_PROD] = SHUNT_KOP_PROD, [SHUNT_MAX] = SHUNT_KOP_EXT, [SHUNT_MIN] = SHUNT_KOP_EXT,
	};
	/* Kernels that copy have one row per element size, under the number of a type of that size. */
	static const enum shunt_dtype copy_of[9] = { [1] = SHUNT_U8, [2] = SHUNT_F16, [4] = SHUNT_U32, [8] = SHUNT_U64 };
	if (!shunt_kind_reduces(kind))
		return SHUNT_KERNEL(algo->shapes[2], SHUNT_KOP_COPY, copy_of[shunt_dtype_bytes[dtype]]);

	enum shunt_kop op = kops[redop];

	return SHUNT_KERNEL(algo->shapes[shunt_algo_hot(redop, dtype) ? (nranks > 2) + (nranks > 4) : 2], op, op == SHUNT_KOP_EXT ? dtype : unsigned_of(dtype));
}

/* Kernel index, flags and factor that type and operator ask for. */
static void type_op(const struct shunt_scope *scope, const struct shunt_coll *coll, struct shunt_pick *pick)
{
	bool is_int = coll->dtype < SHUNT_F16;

	pick->kernel = shunt_algo_kernel(pick->algo, coll->kind, scope->nranks, coll->redop, coll->dtype);
	pick->flags = 0;
	pick->scalar = 0;
	if (!shunt_kind_reduces(coll->kind))
		return;
	switch (coll->redop) {
	case SHUNT_MIN:
		pick->flags = SHUNT_K_MIN;
		break;
	case SHUNT_PREMUL:
		pick->flags = SHUNT_K_PREMUL | (coll->scalar_on_device ? SHUNT_K_SCALAR_ON_DEVICE : 0);
		pick->scalar = coll->scalar;
		break;
	case SHUNT_AVG:
		if (is_int) {
			pick->flags = SHUNT_K_DIVIDE | (coll->dtype != unsigned_of(coll->dtype) ? SHUNT_K_SIGNED : 0);
		} else {
			pick->flags = SHUNT_K_PREMUL;
			pick->scalar = shunt_algo_reciprocal(coll->dtype, scope->nranks);
		}
		break;
	default:
		break;
	}
}

bool shunt_select(const struct shunt_scope *scope, const struct shunt_coll *coll, struct shunt_pick *pick_p, enum shunt_why *why_p)
{
	/* The two ends of a message must come to one answer. */
	enum shunt_kind kind = coll->kind == SHUNT_RECV ? SHUNT_SEND : coll->kind;
	uint64_t bytes = (uint64_t)coll->count * shunt_dtype_bytes[coll->dtype];
	const struct shunt_algo *algo = NULL;
	enum shunt_why why = SHUNT_WHY_KIND;

	if (scope->nranks == 1) {
		*why_p = scope->standalone ? SHUNT_WHY_OURS : SHUNT_WHY_ONE_RANK;
		pick_p->algo = &shunt_local_algo;
		type_op(scope, coll, pick_p);
		return scope->standalone;
	}
	pthread_once(&forced_once, forced_parse);
	if (!scope->standalone && shunt_config_forces_nccl(kind)) {
		*why_p = SHUNT_WHY_FORCED;
		return false;
	}
	if (!scope->standalone && shunt_nccl_env_claims(kind)) {
		*why_p = SHUNT_WHY_NCCL_ENV;
		return false;
	}
	if (nforced && forced_find(kind, bytes, &algo)) {
		why = SHUNT_WHY_FORCED;
	} else {
		for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && !algo; i++) {
			const struct range *r = &ranges[i];

			if (r->kind != kind && (r->kind != ANY_KIND || !algo_find(kind, r->algo)))
				continue;
			why = SHUNT_WHY_SIZE;
			if (range_fits(r, scope, bytes))
				algo = algo_find(kind, r->algo);
		}
	}
	if (!algo) {
		*why_p = why;
		return false;
	}
	pick_p->algo = algo;
	type_op(scope, coll, pick_p);
	*why_p = SHUNT_WHY_OURS;
	return true;
}

const char *shunt_select_name(const struct shunt_scope *scope, enum shunt_kind kind, enum shunt_dtype dtype, enum shunt_redop redop,
    uint64_t bytes, enum shunt_why *why_p)
{
	struct shunt_coll coll = { .kind = kind, .dtype = dtype, .redop = redop, .count = bytes / shunt_dtype_bytes[dtype] };
	struct shunt_pick pick;

	return shunt_select(scope, &coll, &pick, why_p) ? pick.algo->name : "nccl";
}
