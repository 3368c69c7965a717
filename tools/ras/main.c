/* SPDX-License-Identifier: MIT */
/* shunt ras: as NCCL's ncclras, with its options and exit statuses. */
#include <getopt.h>
#include "tools/common/libc.h"
#include "base/io.h"
#include "base/json.h"
#include "base/place.h"
#include "shim/nccl/abi.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"
#include "tools/ras/ras.h"

enum { ROUNDS = 5, AGAIN_MS = 5000 };

/* For the text of --help and for shells; parse() below takes what ncclras takes, -h HOST included. */
static const char *const formats[] = { "text", "json", NULL };
static const struct option_row rows[] = {
	{ "format", 'f', OPTION_WORD, "FMT", .names = formats, .help = "text or json (text)" },
	{ "host", 0, OPTION_TEXT, "HOST", .help = "where a process of the job listens (localhost); also -h HOST" },
	{ "port", 'p', OPTION_TEXT, "PORT", .help = "its port (28028)" },
	{ "timeout", 't', OPTION_NUMBER, "SECS",
	    .help = "how long NCCL waits for its other processes (5); 0: no limit" },
	{ "verbose", 'v', OPTION_FLAG, .help = "NCCL tells more" },
	{ "version", 0, OPTION_FLAG, .help = "print the version" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt ras [OPTION...]\n\n"
	"As NCCL's ncclras: the state of the job that runs here, with counts of calls that have Shunt's. A "
	"communicator's\n"
	"counts are replaced if all its ranks answer, else they are NCCL's alone and a field \"shunt\" says why. Where "
	"NCCL\n"
	"does not answer (NCCL_RAS_ENABLE=0, or no NCCL), the answer is Shunt's.\n\n",
	rows,
	"Under the name ncclras it stands in its place. Options that are not here, such as --monitor, are left to the\n"
	"next ncclras in PATH.\n"
	"Exit status: 0, or 1 without an answer or for a wrong option, as of ncclras.\n"
};

/* True if it is this program, or the script by which a wheel has it under that name. */
static bool is_own(const char *found)
{
	char own[PATH_MAX], lib[PATH_MAX], script[PATH_MAX + 32];

	if (realpath("/proc/self/exe", own) && !strcmp(found, own))
		return true;
	if (!shunt_place_find(SHUNT_PLACE_LIBRARY, NULL, lib))
		return false;
	snprintf(script, sizeof(script), "%s/shunt/bin/ncclras", lib);
	return realpath(script, own) && !strcmp(found, own);
}

/* Becomes NCCL's own client: the next one in PATH that is not this program. */
static int real_client(char **argv, const char *what)
{
	const char *list = getenv("PATH");
	char path[PATH_MAX], found[PATH_MAX];

	for (; list && *list; list += strcspn(list, ":"), list += *list == ':') {
		snprintf(path, sizeof(path), "%.*s/ncclras", (int)strcspn(list, ":"), list);
		if (access(path, X_OK) || !realpath(path, found) || is_own(found))
			continue;
		argv[0] = path;
		/* NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): PATH says which program, as to a shell */
		execv(path, argv);
	}
	tool_error("%s is for NCCL's own ncclras, and there is none in PATH", what);
	return TOOL_FAIL;
}

/* -1: go on; else the exit status. */
static int parse(struct ras_opts *o, int argc, char **argv)
{
	static const struct option longs[] = { { "format", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'e' }, { "host", required_argument, NULL, 'h' },
		{ "port", required_argument, NULL, 'p' }, { "timeout", required_argument, NULL, 't' },
		{ "verbose", no_argument, NULL, 'v' }, { "version", no_argument, NULL, 'r' }, { 0 } };
	char **original = calloc((size_t)argc + 1, sizeof(*original)); /* getopt_long sorts them */
	int opt, status = -1;
	unsigned seconds;

	if (!original)
		return TOOL_FAIL;
	memcpy(original, argv, (size_t)argc * sizeof(*argv));
	opterr = 0;
	optind = 1;
	while (status < 0 && (opt = getopt_long(argc, argv, ":f:h:p:t:v", longs, NULL)) != -1) {
		switch (opt) {
		case 'f':
			o->json = !strcasecmp(optarg, "json");
			if (!o->json && strcasecmp(optarg, "text")) {
				tool_error("--format: \"%s\" is neither text nor json", optarg);
				status = TOOL_FAIL;
			}
			break;
		case 'h':
			o->host = optarg;
			break;
		case 'p':
			o->port = optarg;
			break;
		case 't':
			if (tool_parse_uint(optarg, 0, 86400, &seconds)) {
				tool_error("--timeout: \"%s\" is no number of seconds", optarg);
				status = TOOL_FAIL;
			}
			o->timeout = (int)seconds;
			break;
		case 'v':
			o->verbose = true;
			break;
		case 'e':
			options_help_print(&options, stdout);
			status = TOOL_OK;
			break;
		case 'r':
			printf("shunt %s\n", shunt_build());
			status = TOOL_OK;
			break;
		case ':':
			if (optopt == 'h' && argc == 2) { /* as of the other commands */
				options_help_print(&options, stdout);
				status = TOOL_OK;
				break;
			}
			tool_error("%s needs a value", argv[optind - 1]);
			status = TOOL_FAIL;
			break;
		default:
			status = real_client(original, argv[optind - 1]);
		}
	}
	if (status < 0 && optind < argc) {
		tool_error("\"%s\" is one argument too many", argv[optind]);
		status = TOOL_FAIL;
	}
	free(original);
	return status;
}

/* What ncclGetVersion says in a program that has Shunt in front. */
static void version_find(char version[32])
{
	__typeof__(ncclGetVersion) *get_version = NULL;
	struct tool_lib lib;
	int v = 0;

	setenv("SHUNT_LOG", "none", 1);
	if (!tool_lib_open(&lib))
		get_version = (__typeof__(ncclGetVersion) *)dlsym(lib.handle, "ncclGetVersion");
	if (get_version)
		get_version(&v);
	snprintf(version, 32, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

/* NCCL's answer with Shunt's counts; NULL after a message. */
static json_t *answer_merge(const char *text, size_t bytes, const struct ras_members *m)
{
	char reason[256] = "";
	struct shunt_json_log log = { .source = "NCCL's answer", .reason = reason, .bytes = sizeof(reason) };
	char *repaired = ras_repair(text, bytes);
	json_t *root = repaired ? shunt_json_parse(&log, repaired, strlen(repaired)) : NULL;

	free(repaired);
	if (root && ras_merge(root, m)) {
		snprintf(reason, sizeof(reason), "NCCL's answer has no list of communicators");
		json_decref(root);
		root = NULL;
	}
	if (!root)
		tool_error("%s", *reason ? reason : strerror(ENOMEM));
	return root;
}

static json_t *answer_alone(const struct ras_members *m, const struct ras_members *before)
{
	char version[32];

	version_find(version);
	return ras_alone(m, before, version);
}

/* What one round of questions has found. */
struct round {
	struct ras_members before, now; /* NCCL's answer was made between the two */
	json_t *root;
	int nccl; /* 0: NCCL has answered */
	char reason[256];
};

static int round_ask(const struct ras_opts *o, struct round *r)
{
	struct ask_process *processes = NULL;
	char *text = NULL;
	size_t n = 0, bytes = 0;
	int err = ask_find(false, &processes, &n);

	json_decref(r->root);
	r->root = NULL;
	err = err ? err : ras_members_ask(&r->before, processes, n);
	r->nccl = err ? err : ras_ask(o, true, &text, &bytes, r->reason);
	err = err ? err : ras_members_ask(&r->now, processes, n);
	ask_free(processes, n);
	if (err)
		tool_error("%s", strerror(-err));
	else if (r->nccl && !r->now.n)
		tool_error("no answer of NCCL's RAS: %s; and no communicator of Shunt's on this host", r->reason);
	/* Something is there and does not answer as it should: what Shunt knows must not look like all. */
	else if (r->nccl && r->nccl != -ECONNREFUSED)
		tool_error("no answer of NCCL's RAS: %s", r->reason);
	else
		r->root = r->nccl ? answer_alone(&r->now, &r->before) : answer_merge(text, bytes, &r->now);
	free(text);
	return r->root ? 0 : -EIO;
}

static int ras_main(int argc, char **argv)
{
	struct ras_opts o = { .host = "localhost", .port = "28028", .timeout = -1 };
	struct round r = { 0 };
	char *plain = NULL;
	size_t bytes;
	int status = parse(&o, argc, argv), err = 0;
	int64_t end = shunt_now_ms() + AGAIN_MS;

	if (status >= 0)
		return status;
	/* A communicator that was made or ended between two answers is in one of them only. */
	for (int rounds = 0; rounds < ROUNDS && !err; rounds++) {
		err = round_ask(&o, &r);
		if (!err && (!ras_has_unmerged(r.root) || ras_members_equal(&r.before, &r.now) || shunt_now_ms() > end))
			break;
	}
	if (!err && o.json) {
		(void)json_dumpf(r.root, stdout, JSON_INDENT(2)); /* stdout's errors are told at the program's end */
		putchar('\n');
	} else if (!err) {
		if (!r.nccl && !ras_ask(&o, false, &plain, &bytes, r.reason)) {
			tool_printable(plain, "\n\t");
			printf("%s\n", plain);
		}
		free(plain);
		ras_print(r.root);
	}
	json_decref(r.root);
	free(r.before.at);
	free(r.now.at);
	return err ? TOOL_FAIL : TOOL_OK;
}

const struct tool_cmd tool_cmd_ras = { .name = "ras",
	.summary = "ask the job that runs here as ncclras does, Shunt's calls included",
	.options = &options,
	.run = ras_main };
