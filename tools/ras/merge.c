/* SPDX-License-Identifier: MIT */
/* Puts Shunt's counts into an answer of NCCL's RAS, for all ranks of a communicator or for none. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include "tools/common/libc.h"
#include "tools/common/tool.h"
#include "tools/ras/ras.h"

enum { REASON = 256 };

static int number(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	return json_is_integer(value) ? (int)json_integer_value(value) : -1;
}

/* True if the text is an address of this host. */
static bool is_here(const char *text)
{
	struct ifaddrs *list, *i;
	char name[INET6_ADDRSTRLEN];
	bool found = false;

	if (getifaddrs(&list))
		return false;
	for (i = list; i && !found; i = i->ifa_next) {
		int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
		const void *at = family == AF_INET ? (void *)&((struct sockaddr_in *)i->ifa_addr)->sin_addr :
		                                     (void *)&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr;

		found = (family == AF_INET || family == AF_INET6) && inet_ntop(family, at, name, sizeof(name)) &&
		    !strcmp(name, text);
	}
	freeifaddrs(list);
	return found;
}

static bool is_rank(const struct ras_member *m, const json_t *rank, int size)
{
	return m->rank == number(rank, "rank") && m->nranks == size && m->pid == number(rank, "pid") &&
	    m->device == number(rank, "cuda_dev");
}

/* The member of this key that is this rank, or NULL. */
static const struct ras_member *member_of(const struct ras_members *m, const char *key, const json_t *rank, int size)
{
	for (size_t i = 0; i < m->n; i++)
		if (!strcmp(m->at[i].key, key) && is_rank(&m->at[i], rank, size))
			return &m->at[i];
	return NULL;
}

/* True if both are of the same ranks of the same processes. */
static bool same_ranks(const json_t *a, const json_t *b)
{
	static const char *const names[] = { "rank", "pid", "cuda_dev" };
	const json_t *x = json_object_get(a, "ranks"), *y = json_object_get(b, "ranks");

	if (json_array_size(x) != json_array_size(y) || number(a, "size") != number(b, "size"))
		return false;
	for (size_t i = 0; i < json_array_size(x); i++) {
		const json_t *one = json_array_get(x, i), *other = json_array_get(y, i);

		for (size_t k = 0; k < 3; k++)
			if (number(one, names[k]) != number(other, names[k]))
				return false;
		if (!json_equal(json_object_get(one, "host"), json_object_get(other, "host")))
			return false;
	}
	return true;
}

static const char *explain(char reason[REASON], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, REASON, fmt, args);
	va_end(args);
	return NULL;
}

/* The key of the which-th communicator of Shunt's of exactly these ranks, of n; NULL with the reason. */
static const char *key_of(const json_t *comm, const struct ras_members *m, size_t which, size_t n, char reason[REASON])
{
	const json_t *ranks = json_object_get(comm, "ranks"), *rank;
	const char *key = NULL;
	int size = number(comm, "size");
	size_t i, complete = 0;

	if (json_array_size(ranks) != (size_t)size || !size)
		return explain(reason, "NCCL has the answers of %zu of its %d ranks", json_array_size(ranks), size);
	json_array_foreach(ranks, i, rank)
	{
		const char *host = json_string_value(json_object_get(rank, "host"));
		size_t found = 0;

		if (!host || !is_here(host))
			return explain(reason, "rank %d is on host %.40s, whose processes cannot be asked from here",
			    number(rank, "rank"), host ? host : "?");
		for (size_t k = 0; k < m->n; k++)
			found += is_rank(&m->at[k], rank, size);
		if (!found)
			return explain(reason, "rank %d (pid %d) gives no answer as a rank of Shunt's",
			    number(rank, "rank"), number(rank, "pid"));
	}
	for (size_t k = 0; k < m->n; k++) {
		const struct ras_member *first = &m->at[k], *each = first;

		if (!is_rank(first, json_array_get(ranks, 0), size))
			continue;
		json_array_foreach(ranks, i, rank)
		{
			each = each ? member_of(m, first->key, rank, size) : NULL;
			if (each && !each->counted)
				return explain(reason, "the Shunt of rank %d (pid %d) is older, and tells no counts",
				    each->rank, each->pid);
		}
		if (each && complete++ == which)
			key = first->key;
	}
	if (complete == n)
		return key;
	return explain(reason, "NCCL has %zu communicators of these ranks, Shunt %zu", n, complete);
}

static void rank_replace(json_t *rank, const struct ras_member *m)
{
	json_t *status = json_object_get(rank, "status"), *counts = json_object();

	for (int op = 0; op < RAS_OPS; op++)
		json_object_set_new(counts, ras_ops[op], json_integer((json_int_t)m->counts[op]));
	json_object_set_new(rank, "collective_counts", counts);
	if (m->error && number(status, "async_error") == 0)
		json_object_set_new(status, "async_error", json_integer(m->error));
	if (m->aborted)
		json_object_set_new(status, "abort_flag", json_true());
}

static void comm_told(json_t *comm, const char *reason)
{
	json_t *shunt = json_object();

	json_object_set_new(shunt, "merged", json_boolean(!*reason));
	if (*reason)
		json_object_set_new(shunt, "reason", json_string(reason));
	json_object_set_new(comm, "shunt", shunt);
}

int ras_merge(json_t *root, const struct ras_members *m)
{
	json_t *comms = json_object_get(root, "communicators"), *comm, *other, *rank;
	size_t i, k, r, n = json_array_size(comms);
	const char **keys;

	if (!json_is_array(comms))
		return -EINVAL;
	json_array_foreach(comms, i,
	    comm) if (!json_is_array(json_object_get(comm, "ranks")) || number(comm, "size") < 0) return -EINVAL;
	keys = calloc(n + 1, sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	json_array_foreach(comms, i, comm)
	{
		size_t which = 0, alike = 0;
		char reason[REASON] = "";

		json_array_foreach(comms, k, other) if (same_ranks(comm, other))
		{
			which += k < i;
			alike++;
		}
		keys[i] = key_of(comm, m, which, alike, reason);
		comm_told(comm, reason);
	}
	json_array_foreach(comms, i, comm)
	{
		char hash[40];

		if (!keys[i])
			continue;
		json_array_foreach(json_object_get(comm, "ranks"), r, rank)
		    rank_replace(rank, member_of(m, keys[i], rank, number(comm, "size")));
		snprintf(hash, sizeof(hash), "0x%s", keys[i]);
		json_object_set_new(
		    json_object_get(comm, "shunt"), "nccl_hash", json_incref(json_object_get(comm, "hash")));
		json_object_set_new(comm, "hash", json_string(hash));
	}
	free(keys);
	return 0;
}

/* ---- Shunt alone */

static json_t *rank_new(const struct ras_member *m, int rank)
{
	return json_pack("{si ss si si si}", "rank", rank, "host", m ? m->host : "unknown", "pid", m ? m->pid : -1,
	    "cuda_dev", m ? m->device : -1, "nvml_dev", m ? m->device : -1);
}

/* The communicator of the n members at `at`, which have one key. */
static json_t *comm_new(const struct ras_member *at, size_t n)
{
	json_t *ranks = json_array(), *missing = json_array(), *comm;
	char reason[REASON] = "", hash[40];
	size_t have = 0;

	for (int rank = 0; rank < at->nranks; rank++) {
		const struct ras_member *m = have < n && at[have].rank == rank ? &at[have] : NULL;
		json_t *row = rank_new(m, rank);

		if (!m) {
			json_object_set_new(
			    row, "status", json_pack("{sb sb}", "unresponsive", 1, "considered_dead", 0));
			json_array_append_new(missing, row);
			continue;
		}
		for (have++; have < n && at[have].rank == rank;)
			have++; /* a stranger's */
		if (!m->counted)
			explain(reason, "the Shunt of rank %d (pid %d) is older, and tells no counts", rank, m->pid);
		json_object_set_new(row, "status",
		    json_pack("{si si sb sb sb}", "init_state", 0, "async_error", 0, "finalize_called", 0,
		        "destroy_flag", 0, "abort_flag", 0));
		rank_replace(row, m);
		json_array_append_new(ranks, row);
	}
	if (json_array_size(missing))
		explain(reason, "rank %d gives no answer here", number(json_array_get(missing, 0), "rank"));
	snprintf(hash, sizeof(hash), "0x%s", at->key);
	comm = json_pack("{ss ss si si si so so}", "hash", hash, "secondary_hash", "0x0:0x0", "size", at->nranks,
	    "ranks_count", (int)json_array_size(ranks), "missing_ranks_count", (int)json_array_size(missing), "ranks",
	    ranks, "missing_ranks", missing);
	comm_told(comm, reason);
	/* Counts of some of the ranks would look like a hang. */
	for (size_t i = 0; *reason && i < json_array_size(ranks); i++)
		rank_replace(json_array_get(ranks, i), &(struct ras_member){ 0 });
	return comm;
}

static size_t count_of(const struct ras_members *m, const char *key)
{
	size_t count = 0;

	for (size_t i = 0; i < m->n; i++)
		count += !strcmp(m->at[i].key, key);
	return count;
}

json_t *ras_alone(const struct ras_members *m, const struct ras_members *before, const char *nccl_version)
{
	json_t *comms = json_array();
	time_t now = time(NULL);
	char at[32] = "";
	struct tm tm;

	if (localtime_r(&now, &tm))
		strftime(at, sizeof(at), "%F %T", &tm);
	for (size_t i = 0, n; i < m->n; i += n) {
		for (n = 1; i + n < m->n && !strcmp(m->at[i + n].key, m->at[i].key);)
			n++;
		if (n >= (size_t)m->at[i].nranks || count_of(before, m->at[i].key) == n)
			json_array_append_new(comms, comm_new(&m->at[i], n));
	}
	return json_pack("{ss si si ss si so s{sf si}}", "nccl_version", nccl_version, "cuda_runtime_version", 0,
	    "cuda_driver_version", 0, "timestamp", at, "communicators_count", (int)json_array_size(comms),
	    "communicators", comms, "ras", "collection_time_sec", 0.0, "timeouts_count", 0);
}

bool ras_has_unmerged(const json_t *root)
{
	const json_t *comm;
	size_t i;

	json_array_foreach(json_object_get(root, "communicators"), i,
	    comm) if (!json_is_true(json_object_get(json_object_get(comm, "shunt"), "merged"))) return true;
	return false;
}

/* ---- as text */

/* "AllReduce 5 (rank 1) to 6" of each collective that was called. */
static void counts_print(const json_t *ranks)
{
	const json_t *rank;
	size_t r;

	for (int op = 0; op < RAS_OPS; op++) {
		json_int_t low = INT64_MAX, high = 0;
		int behind = -1;

		json_array_foreach(ranks, r, rank)
		{
			json_int_t calls = json_integer_value(
			    json_object_get(json_object_get(rank, "collective_counts"), ras_ops[op]));

			if (calls < low) {
				low = calls;
				behind = number(rank, "rank");
			}
			high = calls > high ? calls : high;
		}
		if (high && low == high)
			printf("    %s: %" PRIu64 " calls on each rank\n", ras_ops[op], (uint64_t)high);
		else if (high)
			printf("    %s: %" PRIu64 " calls, and rank %d only %" PRIu64 "\n", ras_ops[op], (uint64_t)high,
			    behind, (uint64_t)low);
	}
}

void ras_print(const json_t *root)
{
	const json_t *comm;
	char text[REASON];
	size_t i;

	puts("Shunt\n=====");
	json_array_foreach(json_object_get(root, "communicators"), i, comm)
	{
		const json_t *shunt = json_object_get(comm, "shunt");
		const char *reason = json_string_value(json_object_get(shunt, "reason"));

		snprintf(text, sizeof(text), "  communicator %s of %d ranks%s%s",
		    json_string_value(json_object_get(comm, "hash")), number(comm, "size"),
		    reason ? ": counts are NCCL's alone, since " : ", with Shunt's calls", reason ? reason : "");
		tool_printable(text, "");
		puts(text);
		if (!reason)
			counts_print(json_object_get(comm, "ranks"));
	}
}
