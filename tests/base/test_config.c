/* SPDX-License-Identifier: MIT */
#include "tests/support/unit.h"
#include "base/config.h"
#include "base/env.h"
#include "base/log.h"

/* A "NAME=value" list as an environment. */
static const char *get_list(void *arg, const char *name)
{
	for (char *const *list = arg; *list; list++)
		if (!strncmp(*list, name, strlen(name)) && (*list)[strlen(name)] == '=')
			return *list + strlen(name) + 1;
	return NULL;
}

#define ENV(...) \
	(char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}

/* Parses and returns what was logged. */
static const char *parse(struct shunt_settings *s, char *const *list)
{
	static struct unit_capture c;

	unit_capture_begin(&c);
	shunt_settings_parse(s, get_list, (void *)list, list);
	return unit_capture_end(&c);
}

static const char *source_of(const struct shunt_settings *s, const char *name, char *value)
{
	struct shunt_config_row row;

	for (size_t i = 0; shunt_settings_row(s, i, &row); i++) {
		if (strcmp(row.name, name))
			continue;
		strcpy(value, row.value);
		return row.source;
	}
	return NULL;
}

static int conf_body(int rank, void *arg)
{
	struct shunt_config_row row;
	char path[] = "/tmp/shunt_test_conf_XXXXXX";
	int fd = mkstemp(path), err = 0;
	const char *text = "NCCL_MAX_CTAS=6\nNCCL_ALGO=allreduce:ring\nNCCL_P2P_LEVEL=LOC\n";

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		return -EIO;
	close(fd);
	setenv("NCCL_CONF_FILE", path, 1);
	setenv("NCCL_MAX_NCHANNELS", "7", 1);
	setenv("SHUNT_FORCE_NCCL", "reduce", 1);
	if (shunt_nccl_env_max_ctas() != 6 || shunt_config_nccl_reason(SHUNT_ALLREDUCE) != SHUNT_REASON_NCCL_ENV ||
	    !shunt_nccl_env_forbids_p2p())
		err = -EINVAL;
	if (shunt_config_nccl_reason(SHUNT_REDUCE) != SHUNT_REASON_FORCED ||
	    shunt_config_nccl_reason(SHUNT_BROADCAST) != SHUNT_REASON_NONE)
		err = -ERANGE;
	for (size_t i = 0; shunt_config_row(i, &row); i++) {
		if (!strcmp(row.name, "NCCL_ALGO") && !strstr(row.source, "configuration file"))
			err = -ENOENT;
		if (!strcmp(row.name, "NCCL_MAX_NCHANNELS") && strcmp(row.source, "NCCL_MAX_NCHANNELS"))
			err = -ENODATA;
	}
	unlink(path);
	return err;
}

TEST(test_config_reads_the_process_and_nccls_file_once)
{
	int err;

	/* In a process of its own: what is read stays. */
	unit_run_processes(1, conf_body, NULL, &err);
	assert_int_equal(err, 0);
}

TEST(test_config_empty_environment_gives_defaults)
{
	struct shunt_settings s;
	char value[256];

	assert_string_equal(parse(&s, ENV("PATH=/bin")), "");
	assert_string_equal(s.config.nccl_lib, "");
	assert_int_equal(s.config.device, SHUNT_DEVICE_AUTO);
	assert_int_equal(s.config.sim_devices, 8);
	assert_int_equal(s.config.log, SHUNT_LOGLEVEL_AUTO);
	assert_false(s.config.stats);
	assert_int_equal(s.config.timeout, 30 * 60 * 1000);
	assert_int_equal(s.config.setup_timeout, 30 * 1000);
	assert_int_equal(s.nccl.comm_blocking, -1);
	assert_int_equal(s.forced, 0);
	assert_int_equal(s.claimed, 0);
	assert_string_equal(source_of(&s, "SHUNT_TIMEOUT", value), "default");
	assert_string_equal(value, "30m");
	shunt_settings_finish(&s);
}

TEST(test_config_rows_show_values_that_parse_to_the_same)
{
	struct shunt_settings s, again;
	char *list[SHUNT_CONFIG_MAX_ROWS + 1] = { 0 };
	struct shunt_config_row row;
	size_t n = 0;

	parse(&s,
	    ENV("SHUNT_DEVICE=sim", "SHUNT_STATS=yes", "SHUNT_TIMEOUT=90", "SHUNT_SETUP_TIMEOUT=1500ms",
	        "SHUNT_LOG=trace", "NCCL_MAX_CTAS=0x10", "SHUNT_ALGO=allreduce:0-64k:oneshot"));
	for (size_t i = 0; shunt_settings_row(&s, i, &row); i++) {
		assert_true(*row.doc && *row.type && *row.accepts);
		list[n] = malloc(600);
		snprintf(list[n++], 600, "%s=%s", row.name, row.value);
	}
	assert_int_equal(n, shunt_config_nrows());
	assert_string_equal(parse(&again, list), "");
	assert_int_equal(again.config.device, SHUNT_DEVICE_SIM);
	assert_true(again.config.stats);
	assert_int_equal(again.config.timeout, 90000);
	assert_int_equal(again.config.setup_timeout, 1500);
	assert_int_equal(again.nccl.max_ctas, 16);
	assert_int_equal(again.fingerprint, s.fingerprint);
	while (n)
		free(list[--n]);
	shunt_settings_finish(&s);
	shunt_settings_finish(&again);
}

/* One must not share memory that the other leaves alone. */
TEST(test_config_integers_are_what_nccl_reads_in_them)
{
	static const char *const settings[] = { "NCCL_MAX_CTAS=4", "NCCL_MAX_CTAS= 4", "NCCL_MAX_CTAS=4 ",
		"NCCL_MAX_CTAS=4\t# few", "NCCL_MAX_CTAS=+4;", "NCCL_MAX_CTAS=0x4", "NCCL_MAX_CTAS=04" };

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		struct shunt_settings s;

		assert_string_equal(parse(&s, ENV((char *)settings[i])), "");
		assert_int_equal(s.nccl.max_ctas, 4);
		shunt_settings_finish(&s);
	}
}

TEST(test_config_cta_policy_is_a_number_or_names)
{
	static const struct {
		char *setting;
		int policy;
	} cases[] = { { "A=1", -1 }, { "NCCL_CTA_POLICY=", -1 }, { "NCCL_CTA_POLICY=0", 0 }, { "NCCL_CTA_POLICY=1", 1 },
		{ "NCCL_CTA_POLICY=2", 2 }, { "NCCL_CTA_POLICY=EFFICIENCY", 1 }, { "NCCL_CTA_POLICY=ZERO|DEFAULT", 2 },
		{ "NCCL_CTA_POLICY=zero|efficiency", 3 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_settings s;

		assert_string_equal(parse(&s, ENV(cases[i].setting)), "");
		assert_int_equal(s.nccl.cta_policy, cases[i].policy);
		shunt_settings_finish(&s);
	}
}

TEST(test_config_malformed_value_warns_and_gives_default)
{
	static const struct {
		const char *setting, *accepts;
	} cases[] = {
		{ "SHUNT_TIMEOUT=abc", "a time" },
		{ "SHUNT_TIMEOUT=", NULL },
		{ "SHUNT_TIMEOUT=-3", "a time" },
		{ "SHUNT_TIMEOUT=3 parsecs", "a time" },
		{ "SHUNT_TIMEOUT=99999999999999999999", "a time" },
		{ "SHUNT_TIMEOUT=9999999999999999h", "a time" },
		{ "SHUNT_SIM_DEVICES=0", "1 to 8" },
		{ "SHUNT_SIM_DEVICES=9", "1 to 8" },
		{ "SHUNT_SIM_DEVICES=4294967300", "a number from 1 to 8" },
		{ "SHUNT_SIM_DEVICES=4x", "a number from 1 to 8" },
		{ "SHUNT_NCCL_VERSION=2.32.3", "21800 to 23299" },
		{ "SHUNT_NCCL_VERSION=23300", "21800 to 23299" },
		{ "SHUNT_STATS=maybe", "0 or 1" },
		{ "SHUNT_DEVICE=rocm", "auto, cuda, sim" },
		{ "NCCL_MAX_CTAS=four", "a whole number" },
		{ "NCCL_P2P_DISABLE=99999999999", "a whole number" },
		{ "NCCL_P2P_LEVEL=near", "PIX, PXB, PHB, SYS" },
		{ "NCCL_SHM_DISABLE=perhaps", "a whole number" },
		{ "SHUNT_LINKS=0-1:fast", "PAIRS:LINK" },
		{ "SHUNT_SIM_LINKS=*:none,stores=late", "PAIRS:LINK" },
		{ "SHUNT_SELFTEST=maybe", "0, 1, always, long" },
		{ "SHUNT_SHARED_BYTES=lots", "a size" },
		{ "NCCL_CTA_POLICY=3", "EFFICIENCY, ZERO" },
		{ "NCCL_CTA_POLICY=ZERO|FAST", "EFFICIENCY, ZERO" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_settings s;
		const char *log = parse(&s, ENV((char *)cases[i].setting));

		assert_int_equal(unit_count(log, "\n"), cases[i].accepts != NULL);
		if (cases[i].accepts) {
			assert_non_null(strstr(log, cases[i].setting));
			assert_non_null(strstr(log, cases[i].accepts));
			assert_non_null(strstr(log, "default"));
		}
		assert_int_equal(s.config.timeout, 30 * 60 * 1000);
		assert_int_equal(s.config.sim_devices, 8);
		assert_false(s.config.stats);
		assert_int_equal(s.config.device, SHUNT_DEVICE_AUTO);
		assert_int_equal(s.nccl.max_ctas, 0);
		assert_int_equal(s.nccl.p2p_disable, 0);
		assert_int_equal(s.nccl.cta_policy, -1);
		shunt_settings_finish(&s);
	}
}

TEST(test_config_durations_are_read)
{
	static const struct {
		const char *setting;
		int64_t ms;
	} cases[] = {
		{ "SHUNT_TIMEOUT=0", 0 },
		{ "SHUNT_TIMEOUT=7", 7000 },
		{ "SHUNT_TIMEOUT=250ms", 250 },
		{ "SHUNT_TIMEOUT=5s", 5000 },
		{ "SHUNT_TIMEOUT=2m", 120000 },
		{ "SHUNT_TIMEOUT=2 MIN ", 120000 },
		{ "SHUNT_TIMEOUT=1h", 3600000 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_settings s;

		assert_string_equal(parse(&s, ENV((char *)cases[i].setting)), "");
		assert_int_equal(s.config.timeout, cases[i].ms);
		shunt_settings_finish(&s);
	}
}

TEST(test_config_alias_is_taken_after_our_own)
{
	struct shunt_settings s;
	char value[256];

	assert_string_equal(parse(&s, ENV("MSCCLPP_NCCL_LIB_PATH=/a/libnccl.so")), "");
	assert_string_equal(s.config.nccl_lib, "/a/libnccl.so");
	assert_string_equal(source_of(&s, "SHUNT_NCCL_LIB", value), "MSCCLPP_NCCL_LIB_PATH");
	shunt_settings_finish(&s);
	parse(&s, ENV("MSCCLPP_NCCL_LIB_PATH=/a", "SHUNT_NCCL_LIB=/b"));
	assert_string_equal(s.config.nccl_lib, "/b");
	assert_string_equal(source_of(&s, "SHUNT_NCCL_LIB", value), "SHUNT_NCCL_LIB");
	shunt_settings_finish(&s);
}

TEST(test_config_unknown_name_warns_with_nearest)
{
	struct shunt_settings s;
	const char *log = parse(&s, ENV("SHUNT_AGLO=x", "SHUNTX=1", "NCCL_NONSENSE=1"));

	assert_non_null(strstr(log, "unknown variable SHUNT_AGLO (maybe SHUNT_ALGO?)"));
	assert_int_equal(unit_count(log, "\n"), 1);
	shunt_settings_finish(&s);
	log = parse(&s, ENV("SHUNT_TIMOUT=1"));
	assert_non_null(strstr(log, "unknown variable SHUNT_TIMOUT (maybe SHUNT_TIMEOUT?)"));
	shunt_settings_finish(&s);
	log = parse(&s, ENV("SHUNT_BULK_COPIES=0", "SHUNT_EARLY_LAUNCH=0"));
	assert_non_null(strstr(log, "unknown variable SHUNT_BULK_COPIES: it is called SHUNT_TMA now"));
	assert_non_null(strstr(log, "unknown variable SHUNT_EARLY_LAUNCH: it is called SHUNT_PDL now"));
	assert_int_equal(unit_count(log, "\n"), 2);
	shunt_settings_finish(&s);
	log = parse(&s, ENV("SHUNT_BICYCLE_REPAIR_SHOP_OPENING_HOURS_AND_ADDRESSES_OF_ALL_TOWNS=1"));
	assert_non_null(strstr(log, "unknown variable SHUNT_BICYCLE"));
	assert_null(strstr(log, "maybe"));
	shunt_settings_finish(&s);
}

TEST(test_config_foreign_variable_is_obeyed_or_names_ours)
{
	struct shunt_settings s;

	assert_string_equal(parse(&s,
	                        ENV("MSCCLPP_SOCKET_IFNAME=eth", "MSCCLPP_SOCKET_FAMILY=AF_INET6", "MSCCLPP_DEBUG=WARN",
	                            "MSCCLPP_HOME=/opt")),
	    "");
	assert_string_equal(s.nccl.socket_ifname, "eth");
	assert_string_equal(s.nccl.socket_family, "AF_INET6");
	shunt_settings_finish(&s);
	const char *log = parse(&s, ENV("MSCCLPP_LOG_LEVEL=DEBUG", "MSCCLPP_FORCE_DISABLE_NVLS=1"));
	assert_non_null(strstr(log, "MSCCLPP_LOG_LEVEL does nothing here: SHUNT_LOG chooses"));
	assert_non_null(strstr(log, "MSCCLPP_FORCE_DISABLE_NVLS does nothing here: NCCL_NVLS_ENABLE=0 keeps"));
	assert_int_equal(unit_count(log, "\n"), 2);
	shunt_settings_finish(&s);
}

TEST(test_config_force_nccl_list_gives_kinds)
{
	struct shunt_settings s;

	assert_string_equal(parse(&s, ENV("SHUNT_FORCE_NCCL=allreduce, Broadcast,all_gather")), "");
	assert_int_equal(s.forced, 1u << SHUNT_ALLREDUCE | 1u << SHUNT_BROADCAST | 1u << SHUNT_ALLGATHER);
	shunt_settings_finish(&s);
	assert_string_equal(parse(&s, ENV("MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION=all")), "");
	assert_int_equal(s.forced, (1u << SHUNT_NKINDS) - 1);
	shunt_settings_finish(&s);
	const char *log = parse(&s, ENV("SHUNT_FORCE_NCCL=alreduce,reduce,"));
	assert_int_equal(s.forced, 1u << SHUNT_REDUCE);
	assert_non_null(strstr(log, "SHUNT_FORCE_NCCL"));
	assert_non_null(strstr(log, "\"alreduce\""));
	shunt_settings_finish(&s);
}

TEST(test_config_nccl_algo_claims_the_named_collectives)
{
	const uint32_t all = 1u << SHUNT_ALLREDUCE | 1u << SHUNT_REDUCE | 1u << SHUNT_BROADCAST |
	    1u << SHUNT_ALLGATHER | 1u << SHUNT_REDUCESCATTER;
	const struct {
		const char *setting;
		uint32_t claimed;
	} cases[] = {
		{ "NCCL_ALGO=ring", all },
		{ "NCCL_ALGO=ring,tree;allreduce:^nvls", all },
		{ "NCCL_ALGO=allreduce:tree", 1u << SHUNT_ALLREDUCE },
		{ "NCCL_ALGO=AllReduce:tree,ring; broadcast:ring", 1u << SHUNT_ALLREDUCE | 1u << SHUNT_BROADCAST },
		{ "NCCL_ALGO=^nvls", all },
		{ "NCCL_PROTO=reducescatter:ll128", 1u << SHUNT_REDUCESCATTER },
		{ "NCCL_PROTO=simple", all },
		{ "NCCL_ALGO=;", 0 },
		{ "NCCL_ALGO=allreduce:", 0 },
		{ "NCCL_ALGO=nonsense:ring", 0 },
		{ "NCCL_ALGO= ", 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_settings s;

		parse(&s, ENV((char *)cases[i].setting));
		if (s.claimed != cases[i].claimed)
			print_error("%s\n", cases[i].setting);
		assert_int_equal(s.claimed, cases[i].claimed);
		shunt_settings_finish(&s);
	}
}

/* What frameworks export so that NCCL's sums do not depend on the size: with SHUNT_DETERMINISTIC ours do not anyway. */
TEST(test_config_deterministic_overrules_what_fixes_nccls_order)
{
	char *const set[] = { "SHUNT_DETERMINISTIC=1", "NCCL_ALGO=ring,tree;allreduce:tree", "NCCL_PROTO=Simple",
		"NCCL_MIN_NCHANNELS=1", "NCCL_MAX_NCHANNELS=1", "NCCL_NTHREADS=1", "NCCL_NVLS_ENABLE=0", NULL };
	struct shunt_settings s, alone;

	parse(&s, set + 1);
	assert_int_not_equal(s.claimed, 0);
	assert_int_equal(s.max_ctas, 1);
	assert_false(s.overruled);
	shunt_settings_finish(&s);
	parse(&alone, ENV("SHUNT_DETERMINISTIC=1"));
	assert_false(alone.overruled);
	parse(&s, set);
	assert_int_equal(s.claimed, 0);
	assert_int_equal(s.max_ctas, 0);
	assert_true(s.overruled);
	/* So ranks with these variables and ranks without them go together. */
	assert_int_equal(s.fingerprint, alone.fingerprint);
	shunt_settings_finish(&s);
	shunt_settings_finish(&alone);
	/* A name wins, with a line; of what does not reduce there is nothing to say. */
	assert_non_null(strstr(parse(&s, ENV("SHUNT_DETERMINISTIC=1", "SHUNT_FORCE_NCCL=reduce")),
	    "SHUNT_FORCE_NCCL=reduce wins over SHUNT_DETERMINISTIC"));
	shunt_settings_finish(&s);
	assert_string_equal(parse(&s, ENV("SHUNT_DETERMINISTIC=1", "SHUNT_FORCE_NCCL=allgather")), "");
	shunt_settings_finish(&s);
	parse(&s, ENV("SHUNT_DETERMINISTIC=1", "NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=1"));
	assert_int_equal(s.max_ctas, 4);
	shunt_settings_finish(&s);
}

TEST(test_config_fingerprint_follows_what_steers_selection)
{
	static const char *const steer[] = { "SHUNT_FORCE_NCCL=reduce", "SHUNT_ALGO=x", "SHUNT_DETERMINISTIC=1",
		"SHUNT_DEVICE=sim", "NCCL_ALGO=ring", "NCCL_PROTO=reduce:ll", "NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=5",
		"SHUNT_ACCUMULATE=own" };
	static const char *const not[] = { "SHUNT_STATS=1", "SHUNT_LOG=info", "SHUNT_TIMEOUT=1", "NCCL_DEBUG=INFO",
		"SHUNT_NCCL_LIB=/x" };
	struct shunt_settings plain, s;
	uint64_t seen[9];

	parse(&plain, ENV("A=b"));
	for (size_t i = 0; i < sizeof(steer) / sizeof(steer[0]); i++) {
		parse(&s, ENV((char *)steer[i]));
		assert_int_not_equal(s.fingerprint, plain.fingerprint);
		seen[i] = s.fingerprint;
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(seen[j], seen[i]);
		shunt_settings_finish(&s);
	}
	for (size_t i = 0; i < sizeof(not) / sizeof(not[0]); i++) {
		parse(&s, ENV((char *)not[i]));
		assert_int_equal(s.fingerprint, plain.fingerprint);
		shunt_settings_finish(&s);
	}
	/* Different texts, same meaning. */
	parse(&s, ENV("NCCL_ALGO=ring"));
	assert_int_equal(s.fingerprint, seen[4]);
	shunt_settings_finish(&s);
	parse(&s, ENV("NCCL_ALGO=tree"));
	assert_int_equal(s.fingerprint, seen[4]);
	shunt_settings_finish(&s);
	shunt_settings_finish(&plain);
}

TEST(test_env_file_lines_are_found)
{
	const char *text = "# NCCL_ALGO=tree\n\nNCCL_ALGO=ring\r\n  NCCL_PROTO = ll128 "
	                   "\nNCCL_ALGO=second\nNCCL_EMPTY=\nnonsense\nNCCL_LAST=1";
	char value[8];

	assert_true(shunt_env_find(text, "NCCL_ALGO", value, sizeof(value)));
	assert_string_equal(value, "ring");
	assert_true(shunt_env_find(text, "NCCL_PROTO", value, sizeof(value)));
	assert_string_equal(value, "ll128");
	assert_true(shunt_env_find(text, "NCCL_LAST", value, sizeof(value)));
	assert_string_equal(value, "1");
	assert_true(shunt_env_find(text, "NCCL_EMPTY", value, sizeof(value)));
	assert_string_equal(value, "");
	assert_false(shunt_env_find(text, "NCCL_ALG", value, sizeof(value)));
	assert_false(shunt_env_find(text, "nonsense", value, sizeof(value)));
	assert_false(shunt_env_find("", "NCCL_ALGO", value, sizeof(value)));
	assert_true(shunt_env_find("NCCL_LONG=0123456789", "NCCL_LONG", value, sizeof(value)));
	assert_string_equal(value, "0123456");
}
