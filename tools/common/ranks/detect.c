/* SPDX-License-Identifier: MIT */
/* Finds the launcher, if any, that started this process as one rank of many. */
#include <netdb.h>
#include "tools/common/libc.h"
#include "tools/common/ranks/ranks.h"

/* In order of precedence: people set torchrun's variables by hand, too, and these win. */
static const struct launcher {
	const char *name, *rank, *size, *local_rank, *job;
} launchers[] = {
	{ "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID" },
	{ "mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	    "PMIX_NAMESPACE" },
	{ "mpirun (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID" },
	{ "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID" },
};

static int launcher_number(const struct launcher *from, const char *name, unsigned lo, unsigned hi, int *value_p)
{
	unsigned value;

	if (tool_parse_uint(getenv(name), lo, hi, &value)) {
		tool_error(
		    "%s=\"%s\", as %s sets it, is not a number from %u to %u", name, getenv(name), from->name, lo, hi);
		return -EINVAL;
	}
	*value_p = (int)value;
	return 0;
}

/*
 * The file with rank 0's address when there is no MASTER_ADDR: the same name on all ranks of this run, another one for
 * every other run.
 */
static void rendezvous_file_name(const struct launcher *from, const struct ranks_opts *o, char file[PATH_MAX])
{
	const char *job = getenv(from->job), *step = getenv("SLURM_STEP_ID");
	char safe[128];
	size_t n = 0;

	if (job && *job) {
		for (; job[n] && n < sizeof(safe) - 1; n++)
			safe[n] = job[n] == '/' ? '_' : job[n];
		safe[n] = 0;
	} else if (o->rendezvous) {
		strcpy(safe, "run"); /* the directory is for this run only */
	} else {
		/* All ranks of one host have the same parent. */
		snprintf(safe, sizeof(safe), "p%ld", (long)getppid());
	}
	snprintf(file, PATH_MAX, "%s/shunt-bench-%ld-%s%s%s", o->rendezvous ? o->rendezvous : "/tmp", (long)geteuid(),
	    safe, step ? "." : "", step ? step : "");
}

/* An unknown host stays unknown: fails now, before all other ranks wait for it. */
static int host_check(const char *host)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	int gai_err = getaddrinfo(host, NULL, &hints, &list);

	if (!gai_err)
		freeaddrinfo(list);
	if (!gai_err || gai_err == EAI_AGAIN)
		return 0;
	tool_error("MASTER_ADDR is \"%s\", which is no host that is known here: %s", host, gai_strerror(gai_err));
	return -EHOSTUNREACH;
}

int ranks_detect(const struct ranks_opts *o, struct ranks_launch *l)
{
	const struct launcher *from = NULL;
	const char *addr, *port;
	int err, value = 0;

	for (size_t i = 0; !from && i < sizeof(launchers) / sizeof(launchers[0]); i++)
		if (getenv(launchers[i].rank) && getenv(launchers[i].size))
			from = &launchers[i];
	if (!from)
		return 0;
	err = launcher_number(from, from->size, 1, 1u << 30, &l->nranks);
	/* A shell in an allocation has the variables of one task, and was not launched as a rank. */
	if (!err && l->nranks == 1) {
		l->nranks = 0;
		return 0;
	}
	if (!err && l->nranks > RANKS_MAX) {
		tool_error("%s started %d ranks; at most %d can be measured", from->name, l->nranks, RANKS_MAX);
		err = -ERANGE;
	}
	if (!err)
		err = launcher_number(from, from->rank, 0, (unsigned)l->nranks - 1, &l->rank);
	l->local_rank = l->rank;
	if (!err && getenv(from->local_rank))
		err = launcher_number(from, from->local_rank, 0, 1u << 20, &l->local_rank);
	if (!err && (o->nranks || o->threads)) {
		tool_error(
		    "-n and --threads are for ranks that shunt bench starts itself; here %s started them", from->name);
		err = -EINVAL;
	}
	if (err)
		return err;
	l->external = 1;
	addr = getenv("MASTER_ADDR");
	port = getenv("MASTER_PORT");
	if (o->rendezvous || !addr || !*addr || !port) {
		rendezvous_file_name(from, o, l->file);
		return 0;
	}
	err = launcher_number(from, "MASTER_PORT", 1, 65534, &value);
	/* MASTER_PORT itself belongs to the launcher's store. */
	l->port = (unsigned)value + 1;
	snprintf(l->host, sizeof(l->host), "%s", addr);
	return err ? err : host_check(addr);
}
