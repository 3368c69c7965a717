/* SPDX-License-Identifier: MIT */
/* From a group's calls on one communicator to launches. */
#include <errno.h>
#include <stdlib.h>
#include "algos/algos.h"
#include "core/log.h"

static int plan_issue(const struct shunt_issue *issue, const struct shunt_pick *picks,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	return issue->run_plan(issue->ctx, picks->plan, calls[0]);
}

const struct shunt_algo shunt_plan_algo = {
	.name = "plan",
	.doc = "an execution plan",
	.kind = SHUNT_NKINDS,
	.fuse = SHUNT_FUSE_NONE,
	.issue = plan_issue,
};

/*
 * May b share a launch with a? Judged by what all ranks share: the factor of a pre-multiplied sum is a rank's own.
 * Calls of one algorithm and way to fuse are of one class; what reduces also needs one kernel.
 */
static bool fuse(
    const struct shunt_coll *a, const struct shunt_pick *pa, const struct shunt_coll *b, const struct shunt_pick *pb)
{
	if (shunt_kind_is_p2p(a->kind) ||
	    shunt_kind_is_p2p(b->kind)) /* all of them, or they might wait for each other */
		return shunt_kind_is_p2p(a->kind) && shunt_kind_is_p2p(b->kind);
	if (a->min_ctas != b->min_ctas || a->max_ctas != b->max_ctas)
		return false;
	if (pa->algo->fuse == SHUNT_FUSE_NONE || pa->algo->fuse != pb->algo->fuse)
		return false;
	if (shunt_kind_reduces(a->kind) != shunt_kind_reduces(b->kind)) /* in windows there are both */
		return false;
	if (!shunt_kind_reduces(a->kind))
		return true;
	return a->dtype == b->dtype && a->redop == b->redop && a->redop != SHUNT_PREMUL &&
	    (pa->algo->fuse != SHUNT_FUSE_LINES || pa->algo == pb->algo);
}

/* Each message that this rank sends itself needs one that it receives from itself. */
static int check_self(const struct shunt_coll *const *calls, size_t n, int rank)
{
	int ahead = 0; /* more sends than receives */

	for (size_t i = 0; i < n; i++)
		if (shunt_kind_is_p2p(calls[i]->kind) && calls[i]->root == rank && calls[i]->count)
			ahead += calls[i]->kind == SHUNT_SEND ? 1 : -1;
	if (!ahead)
		return 0;
	shunt_warn("rank %d %s itself and does not %s itself in the same group", rank,
	    ahead > 0 ? "sends to" : "receives from", ahead > 0 ? "receive from" : "send to");
	return -EBADMSG;
}

/* Calls that share launches, with their own limits on blocks beside the communicator's. */
static int issue_bin(
    const struct shunt_issue *issue, const struct shunt_pick *picks, const struct shunt_coll *const *calls, size_t n)
{
	struct shunt_scope scope = *issue->scope;
	struct shunt_issue limited = *issue;

	scope.max_ctas = shunt_lesser_limit(scope.max_ctas, calls[0]->max_ctas);
	scope.min_ctas = calls[0]->min_ctas;
	/* A message's channels follow from its size alone: the two ends may fuse it with others. */
	if (!shunt_kind_is_p2p(calls[0]->kind)) {
		scope.max_ctas = shunt_lesser_limit(
		    scope.max_ctas, picks->geometry.blocks > scope.min_ctas ? picks->geometry.blocks : 0);
		scope.max_threads = picks->geometry.threads;
		scope.max_channels = picks->geometry.channels;
	}
	limited.scope = &scope;
	return picks->algo->issue(&limited, picks, calls, n);
}

int shunt_issue_calls(
    const struct shunt_issue *issue, const struct shunt_coll *const *calls, const struct shunt_pick *picks, size_t n)
{
	const struct shunt_coll *few[SHUNT_FEW_CALLS], **bin = few;
	struct shunt_pick few_picks[SHUNT_FEW_CALLS], *bin_picks = few_picks;
	bool few_done[SHUNT_FEW_CALLS] = { false }, *done = few_done;
	int err = check_self(calls, n, issue->base->rank);
	size_t alike = 1;

	if (err || !n)
		return err;
	while (alike < n && fuse(calls[0], &picks[0], calls[alike], &picks[alike]))
		alike++;
	if (alike == n) /* the usual case */
		return issue_bin(issue, picks, calls, n);
	if (n > SHUNT_FEW_CALLS) {
		bin = malloc(n * sizeof(*bin));
		bin_picks = malloc(n * sizeof(*bin_picks));
		done = calloc(n, sizeof(*done));
		if (!bin || !bin_picks || !done)
			err = -ENOMEM;
	}
	for (int p2p = 0; p2p < 2; p2p++)
		for (size_t i = 0; i < n && !err; i++) {
			size_t in = 0;

			if (done[i] || shunt_kind_is_p2p(calls[i]->kind) != p2p)
				continue;
			for (size_t k = i; k < n; k++)
				if (!done[k] && (k == i || fuse(calls[i], &picks[i], calls[k], &picks[k]))) {
					bin_picks[in] = picks[k];
					bin[in++] = calls[k];
					done[k] = true;
				}
			err = issue_bin(issue, bin_picks, bin, in);
		}
	if (n > SHUNT_FEW_CALLS) {
		free(bin);
		free(bin_picks);
		free(done);
	}
	return err;
}
