/* SPDX-License-Identifier: MIT */
#include "comm/core/fault.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/plugins.h"
#include "comm/core/communicator.h"
#include "comm/core/fault_ep.h"

static void format_operation(const struct shunt_operation *o, char *text, size_t bytes)
{
	bool message = shunt_kind_is_p2p(o->kind), reduces = shunt_kind_reduces(o->kind);
	int n;

	if (o->kind == SHUNT_NKINDS) {
		snprintf(text, bytes, "%s of %llu elements (call %llu%s)", o->path, (unsigned long long)o->count,
		    (unsigned long long)o->number, o->captured ? ", captured" : "");
		return;
	}
	n = snprintf(text, bytes, "%s of %llu %s%s%s", shunt_kind_name(o->kind), (unsigned long long)o->count,
	    shunt_dtype_name(o->dtype), reduces ? ", " : "", reduces ? shunt_redop_name(o->redop) : "");

	if (n < 0 || (size_t)n >= bytes)
		return;
	if (message)
		snprintf(text + n, bytes - (size_t)n, " (message %llu %s rank %d%s)", (unsigned long long)o->number,
		    o->kind == SHUNT_SEND ? "to" : "from", o->root, o->captured ? ", captured" : "");
	else
		snprintf(text + n, bytes - (size_t)n, " (collective %llu%s)", (unsigned long long)o->number,
		    o->captured ? ", captured" : "");
}

/*
 * Text such as "allreduce of 1000 float32, sum (collective 3)" for kargs.op; "a collective" if the operation is not
 * known.
 */
static void describe_operation(const struct shunt_comm *comm, unsigned long long op, char *text, size_t bytes)
{
	bool captured = op & SHUNT_OP_CAPTURED;
	struct shunt_operation *ops = op && comm->recorder ? malloc(SHUNT_RECORDER_OPERATIONS * sizeof(*ops)) : NULL;
	size_t n = ops ? shunt_recorder_read(comm->recorder, captured, ops, SHUNT_RECORDER_OPERATIONS) : 0;

	snprintf(text, bytes, comm->own.bytes ? "a call" : "a collective");
	for (size_t i = 0; i < n; i++)
		if (ops[i].seq == (op & ~SHUNT_OP_CAPTURED))
			format_operation(&ops[i], text, bytes);
	free(ops);
}

/* One line has both sides of a mismatch; every rank writes it. */
static void fail_mismatch(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	char mine[256], theirs[256];
	bool sends = !f->mine.kind;

	if (f->mine.what & SHUNT_CHECK_MESSAGES) {
		shunt_comm_fail_saying(comm, err,
		    "communicator %s: message %u from rank %u to rank %u: the sender sends %llu bytes where "
		    "the receiver receives %llu bytes; make the two ends agree on counts, types and the order of "
		    "messages",
		    shunt_id_text(comm->id.b).s, f->mine.number, sends ? f->rank : f->peer, sends ? f->peer : f->rank,
		    (unsigned long long)(sends ? f->mine_count : f->theirs_count),
		    (unsigned long long)(sends ? f->theirs_count : f->mine_count));
		return;
	}
	shunt_check_text(&f->mine, f->mine_count, mine, sizeof(mine));
	shunt_check_text(&f->theirs, f->theirs_count, theirs, sizeof(theirs));
	shunt_comm_fail_saying(comm, err,
	    "communicator %s: rank %u calls %s where rank %u calls %s%s; make all ranks issue the same collectives in "
	    "the same order",
	    shunt_id_text(comm->id.b).s, f->rank, mine, f->peer, theirs,
	    strcmp(mine, theirs)  ? "" :
	        f->mine.calls > 1 ? ", and a later one of the group differs" :
	                            "");
}

static void fail_timeout(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	bool any = f->peer == SHUNT_FAULT_ANY_PEER;
	char op[256], where[32] = "", whose[64];

	describe_operation(comm, f->op, op, sizeof(op));
	if (f->channel != SHUNT_CHECK_CHANNEL)
		snprintf(where, sizeof(where), ", channel %u", f->channel);
	if (any)
		snprintf(whose, sizeof(whose), "a plan's packets");
	else
		snprintf(whose, sizeof(whose), "%s of rank %u", *where ? "data" : "the call", f->peer);
	shunt_comm_fail_saying(comm, err,
	    "rank %u waited %lld ms for %s in %s (%s %s%s, expected %llu, seen %llu): %s is late, dead or in "
	    "another call%s; raise %s if it is only late",
	    f->rank, (long long)(shunt_comm_spin_limit(comm) / 1000000), whose, op, shunt_comm_noun(comm),
	    shunt_id_text(comm->id.b).s, where, (unsigned long long)f->expected, (unsigned long long)f->seen,
	    any ? "a peer" : "the peer", any ? ", or the plan writes over packets that nobody has read" : "",
	    comm->own.bytes ? comm->own.limit_name : "SHUNT_TIMEOUT");
}

static void fail_offset(struct shunt_comm *comm, int err, const struct shunt_fault *f)
{
	char op[256];

	describe_operation(comm, f->op, op, sizeof(op));
	shunt_comm_fail_saying(comm, err,
	    "communicator %s: in %s rank %u finds the buffer of rank %u at another offset of its window "
	    "(%#llx, not %#llx): a window "
	    "registered with NCCL_WIN_COLL_SYMMETRIC promises the same offset on all ranks; keep that, "
	    "or register without the flag",
	    shunt_id_text(comm->id.b).s, op, f->rank, f->peer, (unsigned long long)f->seen,
	    (unsigned long long)f->expected);
}

void shunt_fault_died(struct shunt_comm *comm, int rank, int pid, unsigned long long op)
{
	char text[256];

	describe_operation(comm, op, text, sizeof(text));
	shunt_comm_fail_saying(comm, -EOWNERDEAD,
	    "rank %d died (pid %d) and rank %d waits for it in %s (%s %s): the %s "
	    "is broken; abort it and make a new one without that rank",
	    rank, pid, comm->rank, text, shunt_comm_noun(comm), shunt_id_text(comm->id.b).s, shunt_comm_noun(comm));
}

/* What kernels of plug-ins have written when they gave up becomes the communicator's error. */
static __attribute__((noinline)) void take_faults_of_plugins(struct shunt_comm *comm)
{
	const struct shunt_comm_plugins *p = &comm->plugins;
	int lost = shunt_comm_life_lost_rank(&comm->life);

	for (size_t i = 0; p->state && i < p->set->n; i++) {
		struct shunt_comm_plugin *s = &p->state[i];
		char peer[48] = "data of a rank";

		if (!atomic_load_explicit(&s->ready, memory_order_acquire) ||
		    __atomic_load_n(&s->fault->set, __ATOMIC_ACQUIRE) != 2)
			continue;
		if (s->fault->peer < (unsigned)comm->nranks)
			snprintf(peer, sizeof(peer), "rank %u", s->fault->peer);
		if (!shunt_comm_life_error(&comm->life))
			shunt_recorder_found(comm->recorder,
			    &(struct shunt_fault){ .set = SHUNT_FAULT_TIMEOUT,
			        .rank = (uint32_t)comm->rank,
			        .peer = s->fault->peer,
			        .channel = SHUNT_CHECK_CHANNEL,
			        .expected = s->fault->expected,
			        .seen = s->fault->seen,
			        .op = atomic_load(&s->op) });
		if (lost >= 0)
			shunt_fault_died(comm, lost, comm->life.lost_pid, atomic_load(&s->op));
		else
			shunt_comm_fail_saying(comm, -ETIMEDOUT,
			    "plug-in %s: rank %d waited %lld ms for %s (communicator %s, expected %llu, seen %llu), "
			    "which is "
			    "late, dead or in another call, or the plug-in is wrong (`shunt plugin check`); raise "
			    "SHUNT_TIMEOUT if it is only late",
			    p->set->use[i].entry->plugin.name, comm->rank,
			    (long long)(shunt_comm_spin_limit(comm) / 1000000), peer, shunt_id_text(comm->id.b).s,
			    (unsigned long long)s->fault->expected, (unsigned long long)s->fault->seen);
	}
}

static __attribute__((noinline)) void take_and_log(struct shunt_comm *comm)
{
	static const struct {
		int err;
		void (*fail)(struct shunt_comm *comm, int err, const struct shunt_fault *f); /* NULL: no line */
	} reasons[] = {
		[SHUNT_FAULT_TIMEOUT] = { -ETIMEDOUT, fail_timeout },
		[SHUNT_FAULT_ABORT] = { -ECANCELED, NULL },
		[SHUNT_FAULT_MISMATCH] = { -EBADE, fail_mismatch },
		[SHUNT_FAULT_PLACE] = { -EBADE, fail_offset },
		[SHUNT_FAULT_EXPERT] = { -EINVAL, shunt_fault_expert },
		[SHUNT_FAULT_DIFFERS] = { -EPROTO, shunt_fault_differs },
		[SHUNT_FAULT_UNDER_WAY] = { -EDEADLK, shunt_fault_under_way },
		[SHUNT_FAULT_OVERFLOW] = { -EOVERFLOW, shunt_fault_overflow },
	};
	uint64_t set = __atomic_load_n(&comm->words->fault.set, __ATOMIC_ACQUIRE);
	int lost = shunt_comm_life_lost_rank(&comm->life);
	struct shunt_fault copy = comm->words->fault, *f = &copy;

	if (comm->own.bytes) {
		copy.rank = (uint32_t)shunt_comm_rank_of_ordinal(comm, copy.rank);
		copy.peer = (uint32_t)shunt_comm_rank_of_ordinal(comm, copy.peer);
	}

	if (comm->islands && copy.op >= SHUNT_PART_OP(0) && copy.op < SHUNT_PART_OP(SHUNT_PARTS)) {
		const struct shunt_part *part = &comm->islands->part[copy.op - SHUNT_PART_OP(0)];

		copy.rank = part->rank_of[copy.rank];
		copy.peer = part->rank_of[copy.peer];
		copy.op = 0;
	}
	if (set == SHUNT_FAULT_TIMEOUT && lost >= 0)
		shunt_fault_died(comm, lost, comm->life.lost_pid, f->op);
	else if (set && set < sizeof(reasons) / sizeof(reasons[0]) && reasons[set].fail)
		reasons[set].fail(comm, reasons[set].err, f);
	else if (set && set < sizeof(reasons) / sizeof(reasons[0]))
		shunt_comm_fail(comm, reasons[set].err);
}

/*
 * The communicator's error, including what kernels have found by now. The first thread that finds a record logs it. Any
 * thread, while the communicator is READY.
 */
static int poll_fault(struct shunt_comm *comm)
{
	if (comm->plugins.launched)
		take_faults_of_plugins(comm);
	/* Every call of the program comes here. */
	if (comm->words && __atomic_load_n(&comm->words->fault.set, __ATOMIC_ACQUIRE))
		take_and_log(comm);
	return shunt_comm_life_error(&comm->life);
}

int shunt_comm_error(struct shunt_comm *comm)
{
	int err = shunt_comm_life_error(&comm->life);

	if (err || shunt_comm_life_state(&comm->life) != COMM_READY)
		return err;
	err = shunt_comm_net_error(&comm->net);
	if (err) {
		shunt_comm_fail(comm, err);
		return shunt_comm_life_error(&comm->life);
	}
	return poll_fault(comm);
}
