/* SPDX-License-Identifier: MIT */
/* shunt info: devices and libraries, settings, and decisions. */
#include <jansson.h>
#include "tools/common/libc.h"
#include "algos/algos.h"
#include "algos/select/nvls.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/renamed.h"
#include "shim/nccl/abi.h"
#include "tools/common/links.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"
#include "tools/common/where.h"
#include "tools/info/info.h"

static int library_print(const struct tool_lib *lib)
{
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(lib->handle, "ncclGetVersion");
	const char *path;
	int version = 0;
	ncclResult_t res = get_version ? get_version(&version) : ncclInternalError;

	printf("shunt %s\n  library     %s\n", lib->build(), lib->path);
	/* Known only after the first NCCL call. */
	path = lib->real_nccl_path();
	printf("  real NCCL   %s\n", path ? path : "none: standalone");
	if (res) {
		tool_error("ncclGetVersion failed with %d", (int)res);
		return TOOL_FAIL;
	}
	/* 2.9 and later: X * 10000 + Y * 100 + Z. */
	printf("  NCCL ABI    %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
	return TOOL_OK;
}

/* The real NCCL's version, 22809 for 2.28.9; 0: there is none. */
int info_nccl_version(const struct tool_lib *lib)
{
	__typeof__(ncclGetVersion) *get_version = (__typeof__(ncclGetVersion) *)dlsym(lib->handle, "ncclGetVersion");
	int version = 0;

	if (!get_version || get_version(&version) || !lib->real_nccl_path())
		return 0;
	return version;
}

/* Why NCCL has no NVLink multicast on the first device; POSSIBLE: nothing is known that speaks against it. */
static enum shunt_nvls nvls_obstacle(const struct tool_lib *lib, const struct shunt_device_identity *id)
{
	const struct shunt_gpu_info gpu = { .cc = (uint16_t)id->cc, .multicast = id->multicast };
	const struct shunt_nvls_nccl nccl = { .version = info_nccl_version(lib) };

	return shunt_nvls_of_rank(&gpu, &nccl, shunt_nccl_env()->nvls_enable);
}

static bool first_device(const struct tool_lib *lib, struct shunt_device_identity *id)
{
	__typeof__(shunt_device_identify) *identify =
	    (__typeof__(shunt_device_identify) *)dlsym(lib->handle, "shunt_device_identify");

	*id = (struct shunt_device_identity){ .size = sizeof(*id) };
	return identify && !identify(0, id);
}

bool info_machine(const struct tool_lib *lib, struct shunt_machine *m)
{
	struct shunt_device_identity id;

	if (!first_device(lib, &id))
		return false;
	memcpy(m->gpu, id.name, sizeof(m->gpu));
	m->cc = id.cc;
	m->driver = id.driver;
	m->sim = !id.cc;
	m->nccl = info_nccl_version(lib);
	m->nvls = m->nccl && !nvls_obstacle(lib, &id);
	return true;
}

static void nvls_print(const struct tool_lib *lib)
{
	struct shunt_device_identity id;
	enum shunt_nvls why;

	if (!first_device(lib, &id))
		return;
	why = nvls_obstacle(lib, &id);
	printf("multicast     %s%s (device attribute %s, NCCL_NVLS_ENABLE %d)\n",
	    why ? "NCCL has none: " : "NCCL may use NVLink multicast: large all-reduces in windows are its",
	    shunt_nvls_name(why), id.multicast ? "set" : "not set", shunt_nccl_env()->nvls_enable);
}

/* What joins the devices, a row for each, with the reason for its slowest link. */
static void links_print(const struct shunt_gpu_ops *gpu, const char *kind)
{
	struct shunt_gpu_info info[TOOL_LINKS_MOST];
	int n = strcmp(kind, gpu->name) ? 0 : tool_links_find(gpu, info);

	for (int i = 0; i < n && n > 1; i++) {
		enum shunt_link slowest;
		char text[768], why[SHUNT_LINK_WHY];

		tool_links_show(gpu, info, n, i, text, sizeof(text), &slowest, why);
		printf("%s%d:%s%s%s\n", i ? "              " : "links         ", i, text,
		    slowest > SHUNT_LINK_NVLINK ? "; " : "", slowest > SHUNT_LINK_NVLINK ? why : "");
	}
}

static int devices_print(const struct tool_lib *lib)
{
	const char *kind = lib->device_kind();
	int n = 0;

	if (!kind || lib->device_count(&n)) {
		puts("devices\n  none; SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none runs without");
		return TOOL_OK;
	}
	printf("devices       %s, %d\n", kind, n);
	for (int i = 0; i < n; i++) {
		char name[128] = "?";

		lib->device_name(i, name, sizeof(name));
		printf("  %-11d %s\n", i, name);
	}
	links_print(!strcmp(kind, "sim") ? &shunt_gpu_sim_ops : &shunt_gpu_cuda_ops, kind);
	nvls_print(lib);
	return TOOL_OK;
}

/* The files that a communicator of this user may take. */
static void tunings_print(void)
{
	const struct shunt_tuning_set *set = shunt_tuning_files();

	for (size_t i = 0; i < set->n; i++)
		printf("%s  %s: %d ranks on %s%s%s\n", i ? "            " : "tuning files", set->tables[i]->source,
		    set->tables[i]->machine.nranks, set->tables[i]->machine.gpu,
		    set->tables[i]->machine.link ? ", by " : "",
		    set->tables[i]->machine.link ? shunt_link_names[set->tables[i]->machine.link] : "");
}

/* What became of a ready file: of another kind of GPU, of such a GPU with other software, or of this machine. */
enum ready { READY_ELSEWHERE, READY_ALMOST, READY_FITS };

/* here: of info_machine(); all 0 where it knows none. */
static enum ready ready_look(struct shunt_tuning *t, struct shunt_machine here)
{
	bool warned;
	struct shunt_tuning_set one = { &t, 1, &warned };

	if (!*here.gpu || strcmp(here.gpu, t->machine.gpu))
		return READY_ELSEWHERE;
	here.nranks = t->machine.nranks;
	here.nhosts = t->machine.nhosts;
	memcpy(here.net, t->machine.net, sizeof(here.net));
	here.link = t->machine.link;
	here.islands = t->machine.islands;
	return shunt_tuning_match(&one, &here, !here.nccl, false) ? READY_FITS : READY_ALMOST;
}

static void software_print(const struct shunt_machine *m)
{
	if (m->nccl)
		printf(", NCCL %d.%d.%d", m->nccl / 10000, m->nccl / 100 % 100, m->nccl % 100);
	if (m->driver)
		printf(", CUDA %u.%u", m->driver / 1000, m->driver % 1000 / 10);
	if (m->nvls > 0)
		printf(", NVLink multicast");
}

/* The tuning files of the installation that are for this kind of machine, and how a communicator comes to take them. */
static void ready_print(const struct tool_lib *lib)
{
	struct shunt_machine here = { 0 };
	struct shunt_tuning_set set;
	bool first = true;

	info_machine(lib, &here);
	shunt_tuning_set_load_ready(&set);
	for (size_t i = 0; i < set.n; i++) {
		struct shunt_tuning *t = set.tables[i];
		enum ready ready = ready_look(t, here);

		if (ready == READY_ELSEWHERE)
			continue;
		printf("%s  %s: %d ranks on %s", first ? "ready files " : "            ", t->source, t->machine.nranks,
		    t->machine.gpu);
		software_print(&t->machine);
		if (ready == READY_FITS) {
			printf("\n              fits this machine: SHUNT_TUNING_FILE=%s takes it\n", t->source);
		} else {
			printf("\n              does not fit: here is %s", here.gpu);
			software_print(&here);
			printf("; `shunt tune -n %d` makes a file for it\n", t->machine.nranks);
		}
		first = false;
	}
	shunt_tuning_set_finish(&set);
}

static json_t *ready_json(const struct tool_lib *lib)
{
	json_t *list = json_array();
	struct shunt_machine here = { 0 };
	struct shunt_tuning_set set;

	info_machine(lib, &here);
	shunt_tuning_set_load_ready(&set);
	for (size_t i = 0; i < set.n; i++)
		json_array_append_new(list,
		    json_pack("{s:o, s:i, s:s, s:b}", "file", json_string_nocheck(set.tables[i]->source), "ranks",
		        set.tables[i]->machine.nranks, "gpu", set.tables[i]->machine.gpu, "fits",
		        ready_look(set.tables[i], here) == READY_FITS));
	shunt_tuning_set_finish(&set);
	return list;
}

/*
 * The next variable of the environment, from *at_p on, that the table has as NCCL's alone; NULL: there are no more.
 * *ours_p: what holds for calls that Shunt takes.
 */
static const char *nccl_only(char ***at_p, const char **ours_p)
{
	while (**at_p) {
		const char *variable = *(*at_p)++;
		char name[128];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(variable, "="), variable);
		*ours_p = shunt_renamed(SHUNT_RENAMED_NCCL_ONLY, name);
		if (*ours_p)
			return variable;
	}
	return NULL;
}

static void config_print(void)
{
	const char *set, *ours, *title = "read by NCCL only; calls that Shunt takes do not follow\n";
	struct shunt_config_row row;
	char text[1024], **at = environ;

	puts("configuration");
	for (size_t i = 0; shunt_config_row(i, &row); i++) {
		printf("  %-22s %s%s", row.name, *row.value ? row.value : "(empty)",
		    strcmp(row.source, "default") ? "" : "  (default)");
		if (strcmp(row.source, "default"))
			printf("  (from %s; default %s)", row.source, *row.def ? row.def : "empty");
		putchar('\n');
		options_text_print("", row.doc, 6, stdout);
		if (*row.accepts) {
			snprintf(text, sizeof(text), "takes %s", row.accepts);
			options_text_print("", text, 6, stdout);
		}
		if (*row.aliases) {
			snprintf(text, sizeof(text), "also %s", row.aliases);
			options_text_print("", text, 6, stdout);
		}
	}
	for (; (set = nccl_only(&at, &ours)); title = "") {
		printf("%s  %s\n", title, set);
		options_text_print("", ours, 6, stdout);
	}
}

static void config_markdown(void)
{
	const char *foreign, *now;
	struct shunt_config_row row;

	puts("| variable | default | meaning |\n|---|---|---|");
	for (size_t i = 0; shunt_config_row(i, &row); i++) {
		printf("| `%s` | %s%s%s | %s", row.name, *row.def ? "`" : "", row.def, *row.def ? "`" : "", row.doc);
		if (*row.aliases)
			printf(" (also `%s`)", row.aliases);
		puts(" |");
	}
	puts("\n| variable of MSCCL++ | here |\n|---|---|");
	for (size_t i = 0; (foreign = shunt_renamed_row(SHUNT_RENAMED_FOREIGN, i, &now)); i++)
		printf("| `%s` | %s |\n", foreign, *now ? now : "obeyed, after NCCL's");
	puts("\n| read by NCCL only | for calls that Shunt takes |\n|---|---|");
	for (size_t i = 0; (foreign = shunt_renamed_row(SHUNT_RENAMED_NCCL_ONLY, i, &now)); i++)
		printf("| `%s` | %s |\n", foreign, now);
}

static void algorithms_print(void)
{
	puts("algorithms");
	const struct shunt_algo *a;

	for (size_t i = 0; (a = shunt_algo_row(i)); i++) {
		char left[64];

		snprintf(left, sizeof(left), "%-11s %-14s", a->name, shunt_kind_name(a->kind));
		options_text_print(left, a->doc, 29, stdout);
	}
}

struct info_opts {
	bool library, devices, config, algorithms, markdown;
	const char *json;
};

#define AT(field) .at = offsetof(struct info_opts, field)
static const struct option_row rows[] = {
	{ "library", 'l', OPTION_FLAG, AT(library), .help = "versions, and which real NCCL would be used" },
	{ "devices", 'd', OPTION_FLAG, AT(devices), .help = "device layer and devices" },
	{ "config", 'c', OPTION_FLAG, AT(config), .help = "every variable: value, where it comes from, meaning" },
	{ "markdown", 0, OPTION_FLAG, AT(markdown),
	    .help = "with -c: names, defaults and meanings as a table for a document" },
	{ "json", 0, OPTION_TEXT, "FILE", AT(json), .help = "write everything there, and print nothing" },
	{ "algorithms", 'a', OPTION_FLAG, AT(algorithms), .help = "Shunt's own algorithms" },
	{ .type = OPTION_END },
};
static const struct option_table options = {
	"usage: shunt info [-l] [-d] [-c] [-a]\n"
	"       shunt info select --ranks N [options] [SIZE...]     (shunt info select --help)\n\n"
	"Without options all sections:\n",
	rows,
	"select: which path a call takes, for each SIZE in bytes or over all sizes, and where that is written.\n\n"
	"Exit status: 0; 1 if the library cannot be opened or used; 2 for a wrong option.\n",
};

/* An exit status. */
static int json_write(const char *path)
{
	json_t *variables = json_array(), *algorithms = json_array(), *tunings = json_array(), *root, *where;
	const struct shunt_tuning_set *set = shunt_tuning_files();
	const char *variable, *ours;
	struct shunt_config_row row;
	const struct shunt_algo *a;
	struct tool_lib lib;
	int err;

	if (tool_lib_open(&lib))
		return TOOL_FAIL;
	for (size_t i = 0; shunt_config_row(i, &row); i++)
		json_array_append_new(variables,
		    json_pack("{s:s, s:o, s:o, s:s, s:o, s:s, s:b}", "name", row.name, "value",
		        json_string_nocheck(row.value), "from", json_string_nocheck(row.source), "default", row.def,
		        "aliases", tool_json_text(row.aliases), "meaning", row.doc, "nccl_only", 0));
	for (char **at = environ; (variable = nccl_only(&at, &ours));) {
		size_t n = strcspn(variable, "=");

		json_array_append_new(variables,
		    json_pack("{s:s%, s:o, s:s, s:n, s:n, s:s, s:b}", "name", variable, n, "value",
		        tool_json_text(variable + n + 1), "from", "environment", "default", "aliases", "meaning", ours,
		        "nccl_only", 1));
	}
	for (size_t i = 0; (a = shunt_algo_row(i)); i++)
		json_array_append_new(algorithms,
		    json_pack(
		        "{s:s, s:s, s:s}", "name", a->name, "collective", shunt_kind_name(a->kind), "meaning", a->doc));
	for (size_t i = 0; i < set->n; i++)
		json_array_append_new(tunings,
		    json_pack("{s:o, s:i, s:s}", "file", json_string_nocheck(set->tables[i]->source), "ranks",
		        set->tables[i]->machine.nranks, "gpu", set->tables[i]->machine.gpu));
	where = tool_where_json(lib.build(), &lib, true);
	root = json_pack("{s:o, s:{s:o, s:o, s:i}, s:O, s:o, s:o, s:o, s:o}", "where", where, "libraries", "shunt",
	    json_string_nocheck(lib.path), "nccl", tool_json_text(lib.real_nccl_path()), "nccl_version",
	    info_nccl_version(&lib), "devices", json_object_get(where, "devices"), "variables", variables, "algorithms",
	    algorithms, "tuning_files", tunings, "ready_files", ready_json(&lib));
	err = tool_file_json(path, root);
	json_decref(root);
	return err ? TOOL_FAIL : TOOL_OK;
}

static int info_main(int argc, char **argv)
{
	struct info_opts o = { 0 };
	int first, status;

	status = options_parse(&options, &o, argc, argv, &first);
	if (status >= 0)
		return status;
	status = TOOL_OK;
	if (first < argc)
		return tool_usage_error("\"%s\" is not one of its arguments", argv[first]);
	if (o.json)
		return json_write(o.json);
	if (o.markdown && !o.config)
		return tool_usage_error("--markdown goes with -c");
	if (!o.library && !o.devices && !o.config && !o.algorithms)
		o.library = o.devices = o.config = o.algorithms = true;
	if (o.library || o.devices) {
		struct tool_lib lib;

		if (tool_lib_open(&lib)) {
			status = TOOL_FAIL;
		} else {
			if (o.library)
				status = library_print(&lib);
			if (o.devices) {
				info_host();
				info_nics();
			}
			if (o.devices && devices_print(&lib))
				status = TOOL_FAIL;
			if (o.devices) {
				tunings_print();
				ready_print(&lib);
			}
		}
	}
	if (o.config && o.markdown)
		config_markdown();
	else if (o.config)
		config_print();
	if (o.algorithms)
		algorithms_print();
	return status;
}

static const struct tool_action actions[] = { { "select", &info_select_options, info_select_main }, { 0 } };

const struct tool_cmd tool_cmd_info = { .name = "info",
	.summary = "show versions, devices, configuration and which path a call takes",
	.options = &options,
	.actions = actions,
	.run = info_main };
