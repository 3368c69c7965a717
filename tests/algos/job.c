/* SPDX-License-Identifier: MIT */
#include "tests/algos/job.h"
#include "tests/support/test.h"

/* Elements that rank r sends and receives, and where in place puts them into one buffer. */
static void job_extents(
    const struct job *j, int n, int r, size_t *send_p, size_t *recv_p, size_t *send_at_p, size_t *recv_at_p)
{
	bool root = r == j->root;
	size_t send_part = shunt_kind_part_of(j->kind, SHUNT_SIDE_SEND, r),
	       recv_part = shunt_kind_part_of(j->kind, SHUNT_SIDE_RECV, r);

	*send_p = *recv_p = *send_at_p = *recv_at_p = 0;
	if (shunt_kind_has_side(j->kind, SHUNT_SIDE_SEND, root))
		*send_p = j->count * shunt_kind_parts(j->kind, SHUNT_SIDE_SEND, n);
	if (shunt_kind_has_side(j->kind, SHUNT_SIDE_RECV, root))
		*recv_p = j->count * shunt_kind_parts(j->kind, SHUNT_SIDE_RECV, n);
	if (*send_p && *recv_p && recv_part > send_part)
		*send_at_p = recv_part * j->count;
	if (*send_p && *recv_p && send_part > recv_part)
		*recv_at_p = send_part * j->count;
}

static void job_expect(const struct job *j, int n, int r, char *want)
{
	size_t part = j->count * shunt_dtype_bytes[j->dtype];
	const void *from[8], *scalars[8];

	for (int p = 0; p < n; p++) {
		from[p] = j->input[p] + shunt_kind_part_of(j->kind, SHUNT_SIDE_SEND, r) * part;
		scalars[p] = j->scalar[p];
		if (shunt_kind_has_each(j->kind, SHUNT_SIDE_RECV))
			memcpy(want + p * part, from[p], part);
	}
	if (shunt_kind_reduces(j->kind))
		ref_allreduce(want, from, n, j->count, j->dtype, j->op, scalars);
	else if (!shunt_kind_has_each(j->kind, SHUNT_SIDE_RECV))
		memcpy(want, from[j->root], part);
}

static size_t buffer_bytes(const struct world *w, const struct job *j)
{
	return (j->count * w->n + j->skew) * shunt_dtype_bytes[j->dtype] + 2 * WORLD_GUARD;
}

void job_prepare(struct world *w, struct job *j, uint64_t seed)
{
	size_t esz = shunt_dtype_bytes[j->dtype], ns, nr, sat, rat;

	for (int r = 0; r < w->n; r++) {
		char *send, *recv;

		job_extents(j, w->n, r, &ns, &nr, &sat, &rat);
		for (int b = 0; b < 2; b++) {
			j->base[r][b] = world_alloc(r, buffer_bytes(w, j));
			memset(j->base[r][b], 0xa5, buffer_bytes(w, j));
		}
		send = j->base[r][0] + WORLD_GUARD + j->skew * esz;
		recv = j->base[r][1] + WORLD_GUARD + j->skew * esz;
		if (j->in_place) {
			/* One buffer, the smaller part inside the larger one. */
			recv = send + rat * esz;
			send += sat * esz;
		}
		ref_fill(send, ns, j->dtype, &seed);
		j->input[r] = malloc(ns * esz + 1);
		memcpy(j->input[r], send, ns * esz);
		ref_fill(j->scalar[r], 1, j->dtype, &seed);
		/* NCCL's callers may give anything off the root. */
		j->call[r] = (struct shunt_coll){ .kind = j->kind,
			.dtype = j->dtype,
			.redop = j->op,
			.root = j->root,
			.count = j->count,
			.send = ns ? send : NULL,
			.recv = nr ? recv : NULL };
		memcpy(&j->call[r].scalar, j->scalar[r], esz);
	}
}

void job_check(const struct world *w, const struct job *j)
{
	size_t esz = shunt_dtype_bytes[j->dtype], ns, nr, sat, rat, first = 0;
	char *want = malloc(buffer_bytes(w, j));

	for (int r = 0; r < w->n; r++) {
		const char *recv = j->call[r].recv;

		job_extents(j, w->n, r, &ns, &nr, &sat, &rat);
		if (nr)
			job_expect(j, w->n, r, want);
		size_t wrong = nr ? ref_compare(recv, want, nr, j->dtype, &first) : 0;
		if (wrong)
			fail_msg("%s n=%d root %d %s %s count %zu skew %d %s rank %d: %zu wrong, first %zu",
			    shunt_kind_name(j->kind), w->n, j->root, shunt_dtype_name(j->dtype),
			    shunt_redop_name(j->op), j->count, j->skew, j->in_place ? "in place" : "out of place", r,
			    wrong, first);
		if (!j->in_place && ns && memcmp(j->call[r].send, j->input[r], ns * esz))
			fail_msg("%s rank %d: the input was changed", shunt_kind_name(j->kind), r);
		for (size_t i = 0; nr && !j->in_place && i < WORLD_GUARD; i++)
			if ((unsigned char)recv[nr * esz + i] != 0xa5)
				fail_msg("%s n=%d count %zu rank %d: wrote behind the result", shunt_kind_name(j->kind),
				    w->n, j->count, r);
	}
	free(want);
}

void job_drop(const struct world *w, struct job *j)
{
	for (int r = 0; r < w->n; r++) {
		shunt_gpu_sim_ops.mem_free(j->base[r][0]);
		shunt_gpu_sim_ops.mem_free(j->base[r][1]);
		free(j->input[r]);
	}
}
