/* SPDX-License-Identifier: MIT */
/* Which tuning files are read, and which of them is taken on a machine. */
#include "tests/algos/paths.h"
#include "tests/algos/tuning_text.h"
#include "tests/support/unit.h"
#include "algos/select/tuning.h"

static char *dir;

static int set_up(void **state)
{
	static char name[64];
	char sub[80];

	strcpy(name, "/tmp/test_tuning_XXXXXX");
	dir = mkdtemp(name);
	snprintf(sub, sizeof(sub), "%s/tuning", name);
	return dir && !mkdir(sub, 0700) ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

TEST(test_tuning_set_takes_named_files_then_the_cache)
{
	char *other = tuning_edited("\"upto\": 2048", "\"upto\": 1024"), list[256];
	struct shunt_tuning_set set;
	const struct shunt_tuning *t;

	unit_write_file(dir, "tuning/cache.json", tuning_good);
	unit_write_file(dir, "tuning/.hidden.json", "x");
	unit_write_file(dir, "tuning/notes.txt", "x");
	unit_write_file(dir, "mine.json", other);
	snprintf(list, sizeof(list), "%s/mine.json", dir);
	shunt_tuning_set_load(&set, list, dir);
	assert_int_equal(set.n, 2);
	t = shunt_tuning_match(&set, &tuning_h200, false, true);
	assert_non_null(t);
	assert_string_equal(t->source, list);
	shunt_tuning_set_finish(&set);
	shunt_tuning_set_load(&set, "", dir);
	assert_int_equal(set.n, 1);
	shunt_tuning_set_finish(&set);
	shunt_tuning_set_load(&set, "none", dir);
	assert_int_equal(set.n, 0);
	assert_null(shunt_tuning_match(&set, &tuning_h200, false, true));
	shunt_tuning_set_finish(&set);
	free(other);
}

TEST(test_tuning_set_broken_files_are_left_out_with_a_line)
{
	struct shunt_tuning_set set;
	struct unit_capture c;
	char file[256];

	unit_write_file(dir, "tuning/a.json", "{\"shunt_tuning\": ");
	unit_write_file(dir, "tuning/b.json", tuning_good);
	snprintf(file, sizeof(file), "%s/tuning/c.json", dir);
	assert_int_equal(mkfifo(file, 0600), 0);
	snprintf(file, sizeof(file), "%s/tuning/d.json", dir);
	assert_int_equal(mkdir(file, 0700), 0);
	unit_capture_begin(&c);
	shunt_tuning_set_load(&set, "/nonexistent/x.json", dir);
	unit_capture_end(&c);
	assert_int_equal(set.n, 1);
	assert_int_equal(unit_count(c.text, "tuning file refused"), 3);
	assert_int_equal(unit_count(c.text, "a.json: line 1: no JSON"), 1);
	assert_int_equal(unit_count(c.text, "not a regular file"), 2);
	assert_int_equal(unit_count(c.text, "no tuning from /nonexistent/x.json: No such file"), 1);
	shunt_tuning_set_finish(&set);
}

/* Files that others may have written. */
TEST(test_tuning_set_trusts_files_of_this_user_and_root)
{
	char file[300], folder[256];
	struct shunt_tuning_set set;
	struct unit_capture c;

	unit_write_file(dir, "tuning/a.json", tuning_good);
	snprintf(folder, sizeof(folder), "%s/tuning", dir);
	snprintf(file, sizeof(file), "%s/a.json", folder);
	for (int i = 0; i < 5; i++) {
		bool others = i == 3 || i == 4; /* only root can give a file away */

		if (others && geteuid())
			break;
		assert_int_equal(chmod(file, i == 1 ? 0666 : 0664), 0);
		assert_int_equal(chmod(folder, i == 2 ? 0777 : 0775), 0);
		if (others)
			assert_int_equal(chown(i == 3 ? file : folder, 65534, (gid_t)-1), 0);
		unit_capture_begin(&c);
		shunt_tuning_set_load(&set, i % 2 ? file : folder, "/nonexistent");
		unit_capture_end(&c);
		assert_int_equal(set.n, i == 0 || (i % 2 && i != 1 && i != 3));
		assert_int_equal(unit_count(c.text, "every user may write to it"), i == 1 || i == 2);
		assert_int_equal(unit_count(c.text, "it is neither this user's nor root's"), i == 3 || i == 4);
		shunt_tuning_set_finish(&set);
		if (i == 3)
			assert_int_equal(chown(file, 0, (gid_t)-1), 0);
	}
}

TEST(test_tuning_set_empty_directory_is_told_if_it_was_named)
{
	struct shunt_tuning_set set;
	struct unit_capture c;
	char empty[128];

	snprintf(empty, sizeof(empty), "%s/empty", dir);
	assert_int_equal(mkdir(empty, 0700), 0);
	unit_capture_begin(&c);
	shunt_tuning_set_load(&set, empty, "/nonexistent");
	shunt_tuning_set_finish(&set);
	shunt_tuning_set_load(&set, "", dir);
	shunt_tuning_set_finish(&set);
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 1);
	assert_int_equal(unit_count(c.text, "/empty: it has no *.json"), 1);
}

TEST(test_tuning_set_other_machine_is_refused_once)
{
	struct shunt_machine other = tuning_h200;
	struct shunt_tuning_set set;
	struct unit_capture c;

	unit_write_file(dir, "tuning/b.json", tuning_good);
	shunt_tuning_set_load(&set, "", dir);
	unit_capture_begin(&c);
	strcpy(other.gpu, "NVIDIA B200");
	other.cc = 100;
	assert_null(shunt_tuning_match(&set, &other, false, true));
	assert_null(shunt_tuning_match(&set, &other, false, true));
	other = tuning_h200;
	other.driver = 12080;
	assert_null(shunt_tuning_match(&set, &other, false, true));
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 1);
	assert_non_null(strstr(c.text,
	    "made on NVIDIA H200 (compute capability 9.0, driver for CUDA 13.0), and this is NVIDIA B200 (10.0, CUDA "
	    "13.0)"));
	/* Another number of ranks is no reason for a line. */
	unit_capture_begin(&c);
	set.warned[0] = false;
	other = tuning_h200;
	other.nranks = 2;
	assert_null(shunt_tuning_match(&set, &other, false, true));
	unit_capture_end(&c);
	assert_string_equal(c.text, "");
	shunt_tuning_set_finish(&set);
}

/* A file is for one version of NCCL, and for NCCL with multicast or without; one of before is for that without. */
TEST(test_tuning_set_is_keyed_by_nccl_and_its_multicast)
{
	static const char *const machines[] = { "\"ranks\": 4", "\"ranks\": 4, \"nvls\": false",
		"\"ranks\": 4, \"nvls\": true" };
	static const struct {
		int file, nccl, nvls;
		bool taken;
	} cases[] = {
		{ 0, 22809, 0, true },
		{ 0, 23203, 0, true },
		{ 0, 22809, 1, false },
		{ 0, 23203, 1, false },
		{ 1, 22809, 0, true },
		{ 1, 23203, 0, false },
		{ 1, 22809, 1, false },
		{ 2, 22809, 1, true },
		{ 2, 23203, 1, false },
		{ 2, 22809, 0, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *text = tuning_edited("\"ranks\": 4", machines[cases[i].file]), list[256];
		struct shunt_machine m = tuning_h200;
		struct shunt_tuning_set set;

		m.nccl = cases[i].nccl;
		m.nvls = cases[i].nvls;
		unit_write_file(dir, "keyed.json", text);
		snprintf(list, sizeof(list), "%s/keyed.json", dir);
		shunt_tuning_set_load(&set, list, "/dev/null");
		assert_int_equal(set.n, 1);
		assert_true(!shunt_tuning_match(&set, &m, false, true) == !cases[i].taken);
		/* Without a real NCCL there is none that the file could be for. */
		m.nccl = 0;
		m.nvls = 0;
		assert_non_null(shunt_tuning_match(&set, &m, true, false));
		shunt_tuning_set_finish(&set);
		free(text);
	}
}

TEST(test_tuning_set_is_keyed_by_hosts_and_provider)
{
	static const struct {
		int nranks, nhosts;
		const char *net;
		bool hosts, one; /* the file for several hosts, or for one, is taken */
		uint8_t link, islands;
	} cases[] = { { 4, 2, "tcp", true, false, 0, 0 }, { 4, 2, "verbs", false, false, 0, 0 },
		{ 4, 4, "tcp", false, false, 0, 0 }, { 8, 2, "tcp", false, false, 0, 0 },
		{ 4, 0, "", false, true, 0, 0 }, { 4, 0, "", false, false, SHUNT_LINK_SHARED, 0 },
		{ 4, 0, "", false, false, SHUNT_LINK_PEER, 2 } };
	struct shunt_tuning_set set;
	char list[256];

	unit_write_file(dir, "tuning/hosts.json", tuning_over_hosts);
	unit_write_file(dir, "tuning/one.json", tuning_good);
	snprintf(list, sizeof(list), "%s/tuning/hosts.json:%s/tuning/one.json", dir, dir);
	shunt_tuning_set_load(&set, list, "/dev/null");
	assert_int_equal(set.n, 2);
	assert_true(set.tables[0]->hash != set.tables[1]->hash);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shunt_machine m = tuning_h200;
		const struct shunt_tuning *t;

		m.nccl = 22809;
		m.nranks = cases[i].nranks;
		m.nhosts = cases[i].nhosts;
		m.link = cases[i].link;
		m.islands = cases[i].islands;
		snprintf(m.net, sizeof(m.net), "%s", cases[i].net);
		t = shunt_tuning_match(&set, &m, false, false);
		assert_ptr_equal(t, cases[i].hosts ? set.tables[0] : cases[i].one ? set.tables[1] : NULL);
	}
	shunt_tuning_set_finish(&set);
}

/* Before it is known on which hosts the ranks are: a call is looked at closer if any file may give it to Shunt. */
static int before_the_ranks_are_placed(int rank, void *arg)
{
	static const struct shunt_topology nowhere = { .nranks = 2, .nislands = 2, .rails = 1 };
	struct shunt_topology pair = { .nranks = 2, .nislands = 2, .island_of = { 0, 1 } };
	struct shunt_sel_key early = { .nranks = 4, .topology = &nowhere, .early = true };

	setenv("SHUNT_TUNING_FILE", arg, 1);
	assert_string_equal(path_of(&early, SHUNT_BROADCAST, 4096), "hierarchical");
	assert_string_equal(path_of(&early, SHUNT_BROADCAST, (16 << 20) + 16), "nccl");
	assert_string_equal(path_of(&early, SHUNT_SEND, 16), "nccl");
	shunt_topology_complete(&pair); /* the file is for others */
	early.topology = &pair;
	assert_string_equal(path_of(&early, SHUNT_ALLGATHER, 64 << 20), "nccl");
	assert_string_equal(path_of(&early, SHUNT_ALLREDUCE, 4096), "hierarchical");
	return 0;
}

TEST(test_tuning_set_over_hosts_counts_before_the_ranks_are_placed)
{
	char path[128];
	int err;

	unit_write_file(dir, "tuning/hosts.json", tuning_over_hosts);
	snprintf(path, sizeof(path), "%s/tuning/hosts.json", dir);
	unit_run_processes(1, before_the_ranks_are_placed, path, &err);
	assert_int_equal(err, 0);
}

TEST(test_tuning_set_without_nccl_is_for_standalone)
{
	char *text = tuning_edited("\"nccl\": \"2.28.9\", ", "");
	struct shunt_tuning_set set;
	struct unit_capture c;

	unit_write_file(dir, "tuning/b.json", text);
	shunt_tuning_set_load(&set, "", dir);
	unit_capture_begin(&c);
	assert_non_null(shunt_tuning_match(&set, &tuning_h200, true, true));
	assert_null(shunt_tuning_match(&set, &tuning_h200, false, true));
	unit_capture_end(&c);
	assert_non_null(strstr(c.text, "without the real NCCL"));
	shunt_tuning_set_finish(&set);
	free(text);
}

TESTS_EACH(set_up, tear_down)

TESTS_BEGIN
{
	path_alone();
}
