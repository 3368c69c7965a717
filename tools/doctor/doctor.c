/* SPDX-License-Identifier: MIT */
/* shunt doctor: finds problems of this host before a run, and the cause of a hang in a run. */
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"

struct pids {
	pid_t *at;
	size_t n;
};

struct doctor_opts {
	struct ranks_opts ranks; /* of --net; the first member */
	struct pids pids;
	bool net;
	const char *output;
	bool json, links;
};

static int pids_apply(void *opts, const struct option_row *row, const char *text)
{
	struct pids *pids = &((struct doctor_opts *)opts)->pids;
	const char *list = text;

	(void)row;
	while (*list) {
		char number[16];
		size_t n = strcspn(list, ",");
		unsigned pid;
		pid_t *more;

		snprintf(number, sizeof(number), "%.*s", (int)n, list);
		if (n >= sizeof(number) || tool_parse_uint(number, 1, 1u << 30, &pid))
			return tool_refuse(-EINVAL, text, "\"%.64s\" is not a list of process numbers", text);
		more = realloc(pids->at, (pids->n + 1) * sizeof(*more));
		if (!more)
			return tool_refuse(-ENOMEM, text, "out of memory");
		pids->at = more;
		pids->at[pids->n++] = (pid_t)pid;
		list += n + (list[n] != 0);
	}
	return 0;
}

static int requests_run(const struct pids *pids, const char *output, bool json)
{
	struct findings f = { 0 };
	struct look look = {
		.f = &f, .request = "dump", .output = output, .processes = calloc(pids->n, sizeof(struct ask_process))
	};
	int status;

	if (!look.processes || (output && doctor_directory_create("--output", output))) {
		free(look.processes);
		return TOOL_USAGE;
	}
	for (size_t i = 0; i < pids->n; i++)
		if (ask_process_read(pids->at[i], &look.processes[look.n]))
			finding_add(&f, FINDING_ERROR, "processes", "", "there is no process %d", (int)pids->at[i]);
		else
			look.n++;
	doctor_look_first(&look);
	if (look.waits)
		doctor_look_sleep(1);
	doctor_look_again(&look);
	doctor_moved_mark(&look.now, &look.before);
	if (look.now.n)
		doctor_hangs(&f, &look.now);
	status = findings_print(&f, json);
	findings_finish(&f);
	doctor_look_finish(&look);
	return look.unkept ? TOOL_USAGE : status; /* 2, as for errors */
}

static void list_free(char **list)
{
	for (size_t i = 0; list[i]; i++)
		free(list[i]);
	free(list);
}

/* NULL: out of memory. */
static char **list_copy(char *const *list)
{
	size_t n = 0;
	char **copy;

	while (list[n])
		n++;
	copy = calloc(n + 1, sizeof(*copy));
	for (size_t i = 0; copy && i < n; i++) {
		copy[i] = strdup(list[i]);
		if (!copy[i]) {
			list_free(copy);
			return NULL;
		}
	}
	return copy;
}

static int engine_main(const char *name, bool json)
{
	struct findings f = { 0 };
	int status;

	doctor_engine(&f, name);
	status = findings_print(&f, json);
	findings_finish(&f);
	return status;
}

static int check_main(const char *program, bool json)
{
	struct findings f = { 0 };
	char **environment;
	bool real;
	int status;

	if (program && doctor_is_engine(program) && access(program, F_OK))
		return engine_main(program, json);
	if (program && access(program, R_OK)) {
		tool_error("%s: %s", program, strerror(errno));
		return TOOL_USAGE;
	}
	/* Silences the warnings of the library and of our own parts of it: the findings report everything. */
	environment = list_copy(environ);
	if (!environment)
		return TOOL_FAIL;
	setenv("SHUNT_LOG", "none", 1);
	real = doctor_libraries(&f, program);
	doctor_devices(&f, real);
	doctor_host(&f);
	doctor_plans(&f);
	doctor_variables(&f, environment, real);
	list_free(environment);
	status = findings_print(&f, json);
	findings_finish(&f);
	return status;
}

#define AT(field) .at = offsetof(struct doctor_opts, field)
static const struct option_row rows[] = {
	{ "pid", 'p', OPTION_CALL, "PID", .call = pids_apply,
	    .help = "asks running processes what they do in their communicators, and says who waits for whom; give all "
	            "ranks" },
	{ "output", 'o', OPTION_TEXT, "DIR", AT(output), .help = "... and keeps their dumps there" },
	{ "json", 0, OPTION_FLAG, AT(json), .help = "findings as JSON" },
	{ "net", 0, OPTION_FLAG, AT(net),
	    .help = "tests the network between ranks, every pair over TCP and, where all have NICs with RDMA, by "
	            "verbs: who "
	            "reaches whom, latency, rate, large packets; under torchrun, mpirun or srun between hosts" },
	{ "links", 0, OPTION_FLAG, AT(links),
	    .help = "tests every link between the devices of this machine for long, and prints what is right" },
	{ "ranks", 'n', OPTION_NUMBER, "N", offsetof(struct ranks_opts, nranks), 2, RANKS_MAX,
	    .help = "with --net: ranks to start (4)" },
	RANKS_OPTION_HOSTS,
	{ "rendezvous", 0, OPTION_TEXT, "DIR", offsetof(struct ranks_opts, rendezvous),
	    .help = "with --net, under mpirun or srun: a directory that all ranks see" },
	RANKS_OPTIONS_WATCH("60"),
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt doctor [--json] [PROGRAM]\n"
	"       shunt doctor [--json] vllm|sglang|torch\n"
	"       shunt doctor [--json] --net [-n N] [--hosts N]\n"
	"       shunt doctor [--json] --links\n"
	"       shunt doctor [--json] [--output DIR] --pid PID[,PID...]...\n"
	"       shunt doctor job [--json] [--output DIR] [--rank-of PID|--key KEY]\n"
	"       shunt doctor dumps [--json] FILE|DIRECTORY...\n\n"
	"Without --pid: looks at this machine as a program started from this shell would find it, and says what is\n"
	"wrong and what to do.\n"
	"PROGRAM: also how this executable or library (such as libtorch_cuda.so) comes by its NCCL.\n"
	"vllm, sglang, torch: what of it, as it is installed, stands before NCCL, and which switches give that to "
	"Shunt.\n\n",
	rows,
	"job: the same for all processes of this user that have a communicator, without their numbers\n"
	"dumps: the same from the files that processes wrote (SHUNT_DUMP_DIR, SHUNT_DUMP_SIGNAL), or that --output "
	"kept\n\n"
	"Exit status: 0 nothing to complain about, 1 warnings, 2 errors, or a wrong option or file.\n",
};

static int doctor_run(struct doctor_opts *o, int argc, char **argv)
{
	int first, status = options_parse(&options, o, argc, argv, &first);

	if (status >= 0)
		return status;
	if (o->output && !o->pids.n)
		return tool_usage_error("--output goes with --pid");
	if (argc - first > 1 || (o->pids.n && first < argc))
		return tool_usage_error("\"%s\" is one argument too many", argv[argc - 1]);
	if (o->net && (o->pids.n || first < argc))
		return tool_usage_error("--net goes with neither --pid nor a program");
	if (o->net)
		return doctor_net(&(struct doctor_net){ &o->ranks, o->json }, argc, argv);
	if (o->links)
		return first < argc || o->pids.n ? tool_usage_error("--links goes with neither --pid nor a program") :
		                                   doctor_links(o->json);
	if (o->ranks.nranks || o->ranks.nhosts)
		return tool_usage_error("--ranks and --hosts go with --net");
	return o->pids.n ? requests_run(&o->pids, o->output, o->json) : check_main(argv[first], o->json);
}

static int doctor_main(int argc, char **argv)
{
	struct doctor_opts o = { .ranks = RANKS_OPTS(60, "shunt") };
	int status;

	o.ranks.device = "sim"; /* a network needs none */
	status = doctor_run(&o, argc, argv);
	free(o.pids.at);
	return status;
}

static const struct tool_action actions[] = { { "dumps", &doctor_dumps_options, doctor_dumps_main },
	{ "job", &doctor_job_options, doctor_job_main }, { 0 } };

const struct tool_cmd tool_cmd_doctor = { .name = "doctor",
	.summary = "find what is wrong: before a run, in one that hangs, and after it",
	.options = &options,
	.actions = actions,
	.run = doctor_main };
