/* SPDX-License-Identifier: MIT */
/* Variables without effect, with unreadable values, or that contradict each other. */
#include "tools/common/libc.h"
#include "algos/select/forced.h"
#include "base/config.h"
#include "base/env.h"
#include "base/nearest.h"
#include "base/renamed.h"
#include "tools/doctor/doctor.h"

static const char topic[] = "variables";

static const char *env_get(char *const *environment, const char *name)
{
	size_t n = strlen(name);

	for (; *environment; environment++)
		if (!strncmp(*environment, name, n) && (*environment)[n] == '=')
			return *environment + n + 1;
	return NULL;
}

static bool is_set(char *const *environment, const char *name)
{
	const char *value = env_get(environment, name);

	return value && *value;
}

/* Reads a variable as the library does: NCCL's variables also come from its files. */
static const char *variable_read(void *arg, const char *name)
{
	const char *value = env_get(arg, name);

	return value || strncmp(name, "NCCL_", 5) ? value : shunt_env(name);
}

static bool is_alias(const char *aliases, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = strstr(aliases, name); at; at = strstr(at + 1, name))
		if ((at == aliases || at[-1] == ' ') && (!at[n] || at[n] == ' '))
			return true;
	return false;
}

static void check_rows(struct findings *f, char *const *environment, const struct shunt_settings *s)
{
	struct shunt_config_row row;

	for (size_t i = 0; shunt_settings_row(s, i, &row); i++) {
		const char *value = env_get(environment, row.name), *alias = row.aliases;
		char name[64];

		if (value && !*value)
			finding_add(f, FINDING_INFO, topic, "", "%s is empty, which counts as not set", row.name);
		while (*alias) {
			size_t n = strcspn(alias, " ");

			snprintf(name, sizeof(name), "%.*s", (int)n, alias);
			if (value && *value && is_set(environment, name))
				finding_add(f, FINDING_WARN, topic, "unset one of them",
				    "%s does nothing: %s says the same and comes first", name, row.name);
			alias += n + (alias[n] == ' ');
		}
		if (!strcmp(row.source, "default")) {
			if (value && *value)
				finding_add(f, FINDING_ERROR, topic, "",
				    "%s=%s cannot be read, and %s is used: it takes %s", row.name, value,
				    *row.def ? row.def : "nothing", row.accepts);
			continue;
		}
		if (doctor_value(f, &row, s))
			continue;
		finding_add(f, FINDING_OK, topic, "", "%s=%s%s%s", row.name, row.value,
		    strcmp(row.source, row.name) ? ", from " : "", strcmp(row.source, row.name) ? row.source : "");
	}
}

/* A variable of NCCL's: Shunt obeys it, only NCCL reads it, or it is no name that is known. */
static void check_nccl_name(struct findings *f, const struct shunt_settings *s, const char *name, bool real_nccl)
{
	static const char *const of_the_log[] = { "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS",
		"NCCL_CONF_FILE" };
	const char *ours = shunt_renamed(SHUNT_RENAMED_NCCL_ONLY, name), *other, *meant;
	struct shunt_nearest nearest = { .text = name };
	struct shunt_config_row row;

	for (size_t i = 0; i < sizeof(of_the_log) / sizeof(of_the_log[0]); i++) {
		if (!strcmp(name, of_the_log[i]))
			return;
		shunt_nearest_try(&nearest, of_the_log[i]);
	}
	for (size_t i = 0; shunt_settings_row(s, i, &row); i++) {
		if (!strcmp(row.name, name) || is_alias(row.aliases, name))
			return;
		if (!strncmp(row.name, "NCCL_", 5))
			shunt_nearest_try(&nearest, row.name);
	}
	for (size_t i = 0; (other = shunt_renamed_row(SHUNT_RENAMED_NCCL_ONLY, i, &meant)); i++)
		if (!strchr(other, '*'))
			shunt_nearest_try(&nearest, other);
	/* NCCL has more names than the table, some of them alike: no more than a slip of the hand is taken for one. */
	meant = ours || nearest.distance > 2 ? NULL : shunt_nearest_name(&nearest, strlen("NCCL_"));
	if (meant)
		finding_add(
		    f, FINDING_WARN, topic, "correct the name", "Shunt knows no variable %s (maybe %s?)", name, meant);
	else if (real_nccl)
		finding_add(f, FINDING_INFO, topic, "", "%s is for the real NCCL and concerns forwarded calls only%s%s",
		    name, ours ? "; " : "", ours ? ours : "");
	else
		finding_add(f, FINDING_WARN, topic, "unset it", "%s does nothing: there is no real NCCL to read it%s%s",
		    name, ours ? "; " : "", ours ? ours : "");
}

static void check_names(struct findings *f, char *const *environment, const struct shunt_settings *s, bool real_nccl)
{
	for (; *environment; environment++) {
		const char *nearest = NULL;
		struct shunt_config_row row;
		bool ours = false;
		char name[128];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*environment, "="), *environment);
		if (!strncmp(name, "SHUNT_", 6)) {
			const char *now = shunt_renamed(SHUNT_RENAMED_VARIABLE, name);

			if (shunt_config_knows(name, &nearest))
				continue;
			if (now)
				finding_add(
				    f, FINDING_ERROR, topic, "correct the name", "%s does nothing: %s", name, now);
			else if (nearest)
				finding_add(f, FINDING_ERROR, topic, "correct the name",
				    "%s does nothing: there is no such variable; %s is meant?", name, nearest);
			else
				finding_add(f, FINDING_ERROR, topic, "`shunt info -c` lists those that exist",
				    "%s does nothing: there is no such variable", name);
		} else if (!strncmp(name, "MSCCLPP_", 8)) {
			for (size_t i = 0; shunt_settings_row(s, i, &row) && !ours; i++)
				ours = is_alias(row.aliases, name);
			nearest = shunt_renamed(SHUNT_RENAMED_FOREIGN, name);
			if (!ours && !nearest)
				finding_add(f, FINDING_INFO, topic, "", "%s is MSCCL++'s and does nothing here", name);
			else if (!ours && *nearest)
				finding_add(f, FINDING_INFO, topic, "", "%s does nothing here: %s", name, nearest);
		} else if (!strncmp(name, "NCCL_", 5)) {
			check_nccl_name(f, s, name, real_nccl);
		}
	}
}

static bool is_writable_dir(const char *path)
{
	struct stat st;

	return !stat(path, &st) ? S_ISDIR(st.st_mode) && !access(path, W_OK | X_OK) : false;
}

/* True: a directory can be created there. */
static bool parent_is_writable(const char *path)
{
	char parent[PATH_MAX];
	char *slash;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = '\0';
	return !access(path, F_OK) ? false : is_writable_dir(slash ? parent : ".");
}

/*
 * The framework that exports NCCL's variables so that sums do not depend on the size of a batch; NULL: none is
 * recognized.
 */
static const char *who_fixes_nccls_order(char *const *environment)
{
	static const char *const megatron[] = { "Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS" };
	const char *algo = env_get(environment, "NCCL_ALGO"), *most = env_get(environment, "NCCL_MAX_NCHANNELS"),
	           *least = env_get(environment, "NCCL_MIN_NCHANNELS"),
	           *vllm = env_get(environment, "VLLM_BATCH_INVARIANT");
	bool fixed_channels = most && least && *most && !strcmp(most, least);

	if (vllm && !strcmp(vllm, "1"))
		return "vLLM (VLLM_BATCH_INVARIANT)";
	if (algo && strcasestr(algo, "tree") && fixed_channels && !strcmp(most, "1"))
		return "vLLM or torchtitan";
	if (algo && strcasestr(algo, "tree") && fixed_channels)
		return "SGLang";
	for (size_t i = 0; algo && i < sizeof(megatron) / sizeof(megatron[0]); i++)
		if (!strcmp(algo, megatron[i]))
			return "Megatron (--deterministic-mode)";
	return NULL;
}

static void check_order_of_sums(
    struct findings *f, char *const *environment, const struct shunt_settings *s, bool real_nccl)
{
	const char *who = who_fixes_nccls_order(environment);

	if (s->config.deterministic && s->forced & SHUNT_KINDS_REDUCE && real_nccl)
		finding_add(f, FINDING_WARN, topic, "unset one of them",
		    "SHUNT_FORCE_NCCL=%s wins over SHUNT_DETERMINISTIC, because it names collectives: NCCL adds in an "
		    "order of "
		    "its own",
		    s->config.force_nccl);
	if (s->config.deterministic && real_nccl && shunt_forced_nccl_adds(s->config.algo))
		finding_add(f, FINDING_WARN, topic, "unset one of them",
		    "SHUNT_ALGO=%s wins over SHUNT_DETERMINISTIC, because it names nccl: NCCL adds in an order of its "
		    "own",
		    s->config.algo);
	if (s->overruled)
		finding_add(f, FINDING_OK, topic, "",
		    "SHUNT_DETERMINISTIC wins over NCCL_ALGO, NCCL_PROTO and NCCL_MAX_NCHANNELS: Shunt's sums have one "
		    "order without them, in as many blocks as they like");
	else if (who && real_nccl && !s->config.deterministic)
		finding_add(f, FINDING_INFO, topic,
		    "set SHUNT_DETERMINISTIC=1 on all ranks: Shunt's sums have one order at every size, and need none "
		    "of "
		    "these variables",
		    "variables as %s exports them fix the order of NCCL's sums, at the cost of its speed", who);
}

static void check_together(struct findings *f, char *const *environment, const struct shunt_settings *s, bool real_nccl)
{
	const struct shunt_config *c = &s->config;
	static const char *const of_the_sim[] = { "SHUNT_SIM_DEVICES", "SHUNT_SIM_LINKS" };
	bool none = !strcmp(c->nccl_lib, "none"), p2p_off = shunt_nccl_forbids_p2p(&s->nccl);

	if (s->forced && !real_nccl)
		finding_add(f, FINDING_ERROR, topic,
		    none ? "unset SHUNT_NCCL_LIB or SHUNT_FORCE_NCCL" :
		           "unset it, or say where NCCL is with SHUNT_NCCL_LIB",
		    "SHUNT_FORCE_NCCL=%s asks for the real NCCL, and there is none", c->force_nccl);
	if (!none && *c->nccl_lib && access(c->nccl_lib, R_OK))
		finding_add(f, FINDING_ERROR, topic, "correct it, or unset it to have it looked for",
		    "SHUNT_NCCL_LIB=%s is not there: %m", c->nccl_lib);
	if (c->device == SHUNT_DEVICE_SIM && real_nccl)
		finding_add(f, FINDING_WARN, topic, "set SHUNT_NCCL_LIB=none with it, or unset it",
		    "SHUNT_DEVICE=sim beside a real NCCL: its streams and memory are no devices of the sim");
	for (size_t i = 0; i < sizeof(of_the_sim) / sizeof(of_the_sim[0]); i++)
		if (is_set(environment, of_the_sim[i]) &&
		    (c->device == SHUNT_DEVICE_CUDA || (real_nccl && c->device == SHUNT_DEVICE_AUTO)))
			finding_add(
			    f, FINDING_WARN, topic, "unset it", "%s does nothing: the sim is not used", of_the_sim[i]);
	if (p2p_off)
		finding_add(f, FINDING_WARN, topic, "unset it, unless that is wanted",
		    "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access: ranks of a host exchange data through its "
		    "memory");
	if (shunt_nccl_env()->launch_order_implicit && real_nccl)
		finding_add(f, FINDING_WARN, topic,
		    "unset it, unless ranks use several communicators in different orders",
		    "NCCL_LAUNCH_ORDER_IMPLICIT has NCCL put the launches of all communicators in order: every "
		    "communicator stays with NCCL");
	if (s->forced && *c->algo)
		finding_add(f, FINDING_WARN, topic, "",
		    "SHUNT_FORCE_NCCL comes before SHUNT_ALGO: rules for the collectives that it names do nothing");
	check_order_of_sums(f, environment, s, real_nccl);
	if (s->claimed && real_nccl)
		finding_add(f, FINDING_INFO, topic, "unset them to have Shunt's kernels",
		    "NCCL_ALGO or NCCL_PROTO chooses for some collectives: these stay with NCCL");
	if (s->claimed && !real_nccl)
		finding_add(f, FINDING_WARN, topic, "unset them",
		    "NCCL_ALGO and NCCL_PROTO do nothing: there is no real NCCL whose algorithms they could choose");
	if (c->timeout == 0)
		finding_add(f, FINDING_WARN, topic, "30m is the default",
		    "SHUNT_TIMEOUT=0: a kernel whose peer is gone waits for ever");
	else if (c->timeout < 1000)
		finding_add(f, FINDING_WARN, topic, "give ranks the time that they may be apart",
		    "SHUNT_TIMEOUT is %lld ms: a rank that is late for a moment breaks the communicator",
		    (long long)c->timeout);
	if (*c->dump_dir && !is_writable_dir(c->dump_dir) && !parent_is_writable(c->dump_dir))
		finding_add(f, FINDING_ERROR, topic, "make it, and let this user write there",
		    "SHUNT_DUMP_DIR=%s is no directory that can be written to", c->dump_dir);
	if (c->dump_signal && !*c->dump_dir)
		finding_add(f, FINDING_INFO, topic, "set SHUNT_DUMP_DIR to choose another place",
		    "SHUNT_DUMP_SIGNAL without SHUNT_DUMP_DIR: dumps go to the directory for temporary files");
	if (!is_set(environment, "NCCL_DEBUG") && !is_set(environment, "SHUNT_LOG")) {
		if (is_set(environment, "NCCL_DEBUG_SUBSYS"))
			finding_add(f, FINDING_WARN, topic, "set NCCL_DEBUG=INFO with it",
			    "NCCL_DEBUG_SUBSYS does nothing without NCCL_DEBUG");
		if (is_set(environment, "NCCL_DEBUG_FILE"))
			finding_add(f, FINDING_WARN, topic, "set NCCL_DEBUG=WARN or more with it",
			    "NCCL_DEBUG_FILE does nothing without NCCL_DEBUG");
	}
	if (is_set(environment, "NCCL_CONF_FILE") && access(env_get(environment, "NCCL_CONF_FILE"), R_OK))
		finding_add(f, FINDING_WARN, topic, "correct it", "NCCL_CONF_FILE=%s cannot be read: %m",
		    env_get(environment, "NCCL_CONF_FILE"));
	if (is_set(environment, "NCCL_SOCKET_IFNAME") && is_set(environment, "NCCL_COMM_ID"))
		finding_add(f, FINDING_INFO, topic, "",
		    "NCCL_COMM_ID names the address; NCCL_SOCKET_IFNAME does not change it");
}

void doctor_variables(struct findings *f, char *const *environment, bool real_nccl)
{
	struct shunt_settings *s = malloc(sizeof(*s));
	size_t before = f->n;

	if (!s) {
		f->failed = true;
		return;
	}
	shunt_settings_parse(s, variable_read, (void *)environment, NULL);
	check_rows(f, environment, s);
	check_names(f, environment, s, real_nccl);
	check_together(f, environment, s, real_nccl);
	if (f->n == before)
		finding_add(f, FINDING_OK, topic, "", "none are set: all defaults");
	shunt_settings_finish(s);
	free(s);
}
