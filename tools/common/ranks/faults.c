/* SPDX-License-Identifier: MIT */
/*
 * The faults between the hosts of --hosts with --faults: links lose, delay, repeat and reorder frames, or are slow or
 * cut for a while, and ranks are stopped. Each fault passes, so no call may fail because of it.
 */
#include "tools/common/libc.h"
#include "tools/common/ranks/ranks.h"

enum fault { NONE, LOSS, DELAY, JITTER, REORDER, REPEAT, RATE, CUT, CUT_OUT, CUT_IN, STOP, NFAULTS };
static const char *const names[NFAULTS] = { "none", "loss", "delay", "jitter", "reordering", "repetition", "low rate",
	"cut", "cut out", "cut in", "stopped rank" };

enum {
	LONGEST_MS = 1500, /* of most faults */
	LONGEST_CUT_MS = 600,
	LONGEST_REST_MS = 1000,
	STEP_MS = 20,
};

static uint32_t draw(struct ranks_faults *f, uint32_t below)
{
	f->random = f->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(f->random >> 33) % below;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void end(struct ranks_faults_host *h, struct netns_link *link)
{
	atomic_store(&link->loss_ppm, 0);
	atomic_store(&link->repeat_ppm, 0);
	atomic_store(&link->reorder_ppm, 0);
	atomic_store(&link->delay_us, 0);
	atomic_store(&link->jitter_us, 0);
	atomic_store(&link->rate_kbps, 0);
	atomic_store(&link->cut_in, false);
	atomic_store(&link->cut_out, false);
	if (h->stopped)
		kill(h->stopped, SIGCONT);
	h->stopped = 0;
	h->fault = NONE;
}

/* The process of one of the host's ranks; 0: it has ended. */
static pid_t choose_rank(struct ranks_faults *f, int host, const pid_t *pids, int nranks)
{
	int rank = (int)draw(f, (uint32_t)nranks);

	while (ranks_host_of(rank, nranks, f->nhosts) != host)
		rank = (rank + 1) % nranks;
	return pids[rank];
}

static void begin(struct ranks_faults *f, int host, struct netns_link *link, const pid_t *pids, int nranks)
{
	struct ranks_faults_host *h = &f->host[host];
	bool cut;

	h->fault = (int)(LOSS + draw(f, NFAULTS - LOSS));
	cut = h->fault == CUT || h->fault == CUT_OUT || h->fault == CUT_IN;
	switch (h->fault) {
	case LOSS:
		atomic_store(&link->loss_ppm, 1000 + draw(f, 49000));
		break;
	case DELAY:
		atomic_store(&link->delay_us, 100 + draw(f, 20000));
		break;
	case JITTER:
		atomic_store(&link->jitter_us, 100 + draw(f, 5000));
		break;
	case REORDER:
		atomic_store(&link->reorder_ppm, 1000 + draw(f, 99000));
		break;
	case REPEAT:
		atomic_store(&link->repeat_ppm, 1000 + draw(f, 99000));
		break;
	case RATE:
		atomic_store(&link->rate_kbps, 1000 + draw(f, 99000));
		break;
	case STOP:
		h->stopped = choose_rank(f, host, pids, nranks);
		if (h->stopped)
			kill(h->stopped, SIGSTOP);
		break;
	default:
		atomic_store(&link->cut_out, h->fault != CUT_IN);
		atomic_store(&link->cut_in, h->fault != CUT_OUT);
		break;
	}
	h->until_ms = now_ms() + 20 + draw(f, cut ? LONGEST_CUT_MS : LONGEST_MS);
	f->count[h->fault]++;
}

int ranks_faults_step(struct ranks_faults *f, struct netns *netns, const pid_t *pids, int nranks)
{
	for (int host = 0; host < f->nhosts; host++) {
		struct ranks_faults_host *h = &f->host[host];

		if (now_ms() < h->until_ms)
			continue;
		if (h->fault == NONE) {
			begin(f, host, netns_link(netns, host), pids, nranks);
			continue;
		}
		end(h, netns_link(netns, host));
		h->until_ms = now_ms() + draw(f, LONGEST_REST_MS);
	}
	return STEP_MS;
}

void ranks_faults_end(struct ranks_faults *f, struct netns *netns)
{
	unsigned long long full = 0;

	for (int host = 0; host < f->nhosts; host++) {
		end(&f->host[host], netns_link(netns, host));
		full += atomic_load(&netns_link(netns, host)->full);
	}
	printf("# faults between the hosts:");
	for (int i = LOSS; i < NFAULTS; i++)
		printf("%s %llu %s", i > LOSS ? "," : "", (unsigned long long)f->count[i], names[i]);
	printf("; the wire had no room for %llu frames\n", full);
}

/* ---- faults of RDMA: the libibverbs of the tests fires them, and writes a line for each */

enum { KINDS = 16 };

static FILE *fired_open(void)
{
	const char *path = getenv("FAKE_IBV_FIRED");

	return path && *path ? fopen(path, "re") : NULL;
}

long ranks_fired_before(void)
{
	FILE *file = fired_open();
	long bytes = 0;

	if (!file)
		return 0;
	if (!fseek(file, 0, SEEK_END))
		bytes = ftell(file);
	fclose(file);
	return bytes < 0 ? 0 : bytes;
}

void ranks_fired_print(long before)
{
	struct {
		char name[32];
		unsigned long long n;
	} kind[KINDS] = { 0 };
	FILE *file = fired_open();
	char line[256], name[32];
	int n = 0, i;

	if (!file)
		return;
	for (bool at = !fseek(file, before, SEEK_SET); at && fgets(line, sizeof(line), file);) {
		if (sscanf(line, "%*s %*s %31s", name) != 1)
			continue;
		for (i = 0; i < n && strcmp(kind[i].name, name) != 0; i++)
			;
		if (i == KINDS)
			continue;
		n += i == n;
		snprintf(kind[i].name, sizeof(kind[i].name), "%s", name);
		kind[i].n++;
	}
	fclose(file);
	printf("# faults of RDMA:");
	for (i = 0; i < n; i++)
		printf("%s %llu %s", i ? "," : "", kind[i].n, kind[i].name);
	printf("%s\n", n ? "" : " none");
}
