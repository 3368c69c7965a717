/* SPDX-License-Identifier: MIT */
#include "tests/support/unit.h"
#include "base/io.h"
#include "base/log.h"

static const char *const variables[] = { "SHUNT_LOG", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE" };

/* Sets the four variables (NULL: unset) and makes the log read them. */
static void set_log(const char *ours, const char *debug, const char *subsys, const char *file)
{
	const char *values[] = { ours, debug, subsys, file };

	for (int i = 0; i < 4; i++) {
		if (values[i])
			setenv(variables[i], values[i], 1);
		else
			unsetenv(variables[i]);
	}
	shunt_log_reset();
}

static const char *log_all(void)
{
	static struct unit_capture c;

	unit_capture_begin(&c);
	shunt_error("an error");
	shunt_warn("a warning");
	shunt_info(SHUNT_LOG_INIT, "init info");
	shunt_info(SHUNT_LOG_COLL, "coll info");
	shunt_info(SHUNT_LOG_GRAPH, "graph info");
	shunt_banner("banner");
	return unit_capture_end(&c);
}

TEST(test_log_levels_print_what_they_promise)
{
	/* Which of: error, warning, init info, coll info, graph info, banner. */
	static const struct {
		const char *ours, *debug, *subsys;
		bool expect[6];
	} cases[] = {
		{ NULL, NULL, NULL, { 1, 1, 0, 0, 0, 1 } },
		{ NULL, "VERSION", NULL, { 1, 1, 0, 0, 0, 1 } },
		{ NULL, "nonsense", NULL, { 1, 1, 0, 0, 0, 1 } },
		{ NULL, "warn", NULL, { 1, 1, 0, 0, 0, 1 } },
		{ NULL, "INFO", NULL, { 1, 1, 1, 0, 0, 1 } },
		{ NULL, "INFO", "COLL", { 1, 1, 0, 1, 0, 1 } },
		{ NULL, "INFO", "init,coll", { 1, 1, 1, 1, 0, 1 } },
		{ NULL, "INFO", "^INIT", { 1, 1, 0, 1, 1, 1 } },
		{ NULL, "TRACE", NULL, { 1, 1, 1, 0, 0, 1 } },
		{ NULL, "TRACE", "ALL", { 1, 1, 1, 1, 1, 1 } },
		{ "none", "TRACE", "ALL", { 0, 0, 0, 0, 0, 0 } },
		{ "error", "INFO", NULL, { 1, 0, 0, 0, 0, 0 } },
		{ "warn", "INFO", NULL, { 1, 1, 0, 0, 0, 1 } },
		{ "info", NULL, NULL, { 1, 1, 1, 0, 0, 1 } },
		{ "trace", NULL, NULL, { 1, 1, 1, 1, 1, 1 } },
		{ "trace", NULL, "COLL", { 1, 1, 0, 1, 0, 1 } },
		{ "auto", "INFO", NULL, { 1, 1, 1, 0, 0, 1 } },
		{ "loud", NULL, NULL, { 1, 1, 0, 0, 0, 1 } },
	};
	static const char *const texts[] = { "SHUNT ERROR an error\n", "SHUNT WARN a warning\n",
		"SHUNT INFO init info\n", "SHUNT INFO coll info\n", "SHUNT INFO graph info\n", "SHUNT banner\n" };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *log;

		set_log(cases[i].ours, cases[i].debug, cases[i].subsys, NULL);
		log = log_all();
		for (int j = 0; j < 6; j++) {
			if ((strstr(log, texts[j]) != NULL) != cases[i].expect[j])
				print_error("case %zu, line %d\n%s", i, j, log);
			assert_int_equal(strstr(log, texts[j]) != NULL, cases[i].expect[j]);
		}
		assert_int_equal(shunt_log_enabled(SHUNT_LOGLEVEL_INFO, SHUNT_LOG_COLL), cases[i].expect[3]);
	}
}

TEST(test_log_obeys_mscclpps_variables_after_nccls)
{
	setenv("MSCCLPP_DEBUG", "INFO", 1);
	set_log(NULL, NULL, NULL, NULL);
	assert_non_null(strstr(log_all(), "init info"));
	set_log(NULL, "WARN", NULL, NULL);
	assert_null(strstr(log_all(), "init info"));
	unsetenv("MSCCLPP_DEBUG");
}

TEST(test_log_line_has_host_process_and_thread)
{
	struct unit_capture c;
	char host[64], want[128];

	set_log(NULL, NULL, NULL, NULL);
	gethostname(host, sizeof(host));
	host[strcspn(host, ".")] = '\0';
	unit_capture_begin(&c);
	errno = ENOENT;
	shunt_warn("two\nlines %d %m", 5);
	assert_int_equal(errno, ENOENT);
	unit_capture_end(&c);
	snprintf(want, sizeof(want), "%s:%d:%d SHUNT WARN two lines 5 No such file or directory\n", host, (int)getpid(),
	    (int)getpid());
	assert_string_equal(c.text, want);
}

TEST(test_log_long_text_is_cut_to_one_line)
{
	struct unit_capture c;
	char text[5000];

	set_log(NULL, NULL, NULL, NULL);
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	unit_capture_begin(&c);
	shunt_warn("%s", text);
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 1);
	assert_int_equal(c.text[strlen(c.text) - 1], '\n');
	assert_in_range(strlen(c.text), 1000, 1300);
	assert_in_range(strlen(shunt_last_error()), 1000, 1023);
}

TEST(test_log_last_error_is_kept_when_nothing_prints)
{
	set_log("none", NULL, NULL, NULL);
	shunt_warn("number %d", 1);
	assert_string_equal(shunt_last_error(), "number 1");
	shunt_error("number %d", 2);
	shunt_info(SHUNT_LOG_ALL, "number 3");
	shunt_banner("number 4");
	assert_string_equal(shunt_last_error(), "number 2");
}

static char *slurp(const char *path, char *buf, size_t bytes)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = fd >= 0 ? read(fd, buf, bytes - 1) : 0;

	if (fd >= 0)
		close(fd);
	buf[n > 0 ? n : 0] = '\0';
	return buf;
}

TEST(test_log_file_takes_host_and_process)
{
	char dir[] = "/tmp/shunt_test_log_XXXXXX", pattern[128], path[256], host[64], text[4096];

	assert_non_null(mkdtemp(dir));
	gethostname(host, sizeof(host));
	host[strcspn(host, ".")] = '\0';
	snprintf(pattern, sizeof(pattern), "%s/a%%%%-%%h.%%p", dir);
	snprintf(path, sizeof(path), "%s/a%%-%s.%d", dir, host, (int)getpid());
	/* Without a level from NCCL_DEBUG the file is not NCCL's either. */
	set_log(NULL, NULL, NULL, pattern);
	assert_non_null(strstr(log_all(), "a warning"));
	assert_int_equal(access(path, F_OK), -1);
	set_log(NULL, "INFO", NULL, pattern);
	assert_string_equal(log_all(), "");
	assert_non_null(strstr(slurp(path, text, sizeof(text)), "SHUNT INFO init info\n"));
	assert_non_null(strstr(text, "SHUNT banner\n"));
	assert_null(strstr(text, "coll info"));
	unlink(path);
	rmdir(dir);
}

TEST(test_log_file_shared_with_another_writer_loses_no_line)
{
	char path[] = "/tmp/shunt_test_log_XXXXXX", text[4096];
	int fd = mkstemp(path); /* as NCCL has it: an offset of its own */

	set_log(NULL, "INFO", NULL, path);
	assert_int_equal(write(fd, "theirs 1\n", 9), 9);
	assert_string_equal(log_all(), "");
	assert_int_equal(write(fd, "theirs 2\n", 9), 9);
	shunt_warn("last");
	set_log(NULL, NULL, NULL, NULL);
	slurp(path, text, sizeof(text));
	assert_int_equal(unit_count(text, "\n"), 7);
	assert_int_equal(strncmp(text, "theirs 1\n", 9), 0);
	assert_non_null(strstr(text, "SHUNT banner\ntheirs 2\n"));
	assert_non_null(strstr(text, "SHUNT WARN last\n"));
	close(fd);
	unlink(path);
}

TEST(test_log_unusable_file_falls_back_to_stderr_once)
{
	static const struct {
		const char *file, *says;
	} cases[] = {
		{ "/nonexistent/directory/file", "cannot open" },
		{ "/dev/full", "cannot write" },
	};
	struct unit_capture c;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unit_capture_begin(&c);
		set_log(NULL, "INFO", NULL, cases[i].file);
		shunt_info(SHUNT_LOG_INIT, "one");
		shunt_info(SHUNT_LOG_INIT, "two");
		unit_capture_end(&c);
		assert_int_equal(unit_count(c.text, cases[i].says), 1);
		assert_int_equal(unit_count(c.text, "SHUNT INFO"), 2);
	}
	set_log(NULL, NULL, NULL, NULL);
}

static int many_lines(int rank, void *arg)
{
	for (int i = 0; i < 50; i++) {
		shunt_warn("thread %d line %d", rank, i);
		if (strncmp(shunt_last_error(), "thread ", 7))
			return -EIO;
	}
	return 0;
}

TEST(test_log_threads_do_not_mix_lines)
{
	struct unit_capture c;
	int errs[4];

	set_log(NULL, NULL, NULL, NULL);
	unit_capture_begin(&c);
	unit_run_threads(4, many_lines, NULL, errs);
	unit_capture_end(&c);
	for (int i = 0; i < 4; i++)
		assert_int_equal(errs[i], 0);
	assert_int_equal(unit_count(c.text, "\n"), 200);
	assert_int_equal(unit_count(c.text, "SHUNT WARN thread "), 200);
}

/* Fills the pipe without reading it. */
static void fill(int fd)
{
	char bytes[4096] = { 0 };

	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (write(fd, bytes, sizeof(bytes)) > 0)
		;
	fcntl(fd, F_SETFL, 0);
}

TEST(test_log_waits_a_second_for_its_reader_and_says_what_is_lost)
{
	int ends[2], before = dup(STDERR_FILENO);
	char text[1 << 17];
	int64_t began;
	ssize_t n;

	set_log(NULL, NULL, NULL, NULL);
	assert_int_equal(pipe(ends), 0);
	fill(ends[1]);
	dup2(ends[1], STDERR_FILENO);
	began = shunt_now_ms();
	for (int i = 0; i < 500; i++) /* with a second for each the test would run out of time */
		shunt_warn("nobody reads this");
	assert_true(shunt_now_ms() - began >= 1000);
	assert_string_equal(shunt_last_error(), "nobody reads this");
	n = read(ends[0], text, sizeof(text));
	assert_true(n > 0);
	shunt_warn("somebody reads this");
	dup2(before, STDERR_FILENO);
	close(ends[1]);
	close(before);
	for (size_t got = 0;; got += (size_t)n) {
		n = read(ends[0], text + got, sizeof(text) - 1 - got);
		text[got + (size_t)(n > 0 ? n : 0)] = '\0';
		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++) /* what filled the pipe */
			text[got + (size_t)i] += !text[got + (size_t)i];
	}
	close(ends[0]);
	assert_null(strstr(text, "nobody reads this"));
	assert_non_null(strstr(text, "SHUNT WARN somebody reads this\n"));
	assert_non_null(strstr(text, "SHUNT WARN 500 lines before this one are lost: nobody read them within 1000 ms"));
}

TEST(test_log_held_lines_come_in_order_with_the_flush)
{
	struct unit_capture c;

	set_log(NULL, NULL, NULL, NULL);
	unit_capture_begin(&c);
	shunt_log_hold();
	shunt_warn("one");
	shunt_log_hold();
	shunt_warn("two");
	shunt_log_flush();
	assert_string_equal(shunt_last_error(), "two");
	unit_capture_end(&c);
	assert_string_equal(c.text, "");
	unit_capture_begin(&c);
	shunt_log_flush();
	shunt_warn("three");
	unit_capture_end(&c);
	assert_int_equal(unit_count(c.text, "\n"), 3);
	assert_true(strstr(c.text, "WARN one") < strstr(c.text, "WARN two"));
	assert_true(strstr(c.text, "WARN two") < strstr(c.text, "WARN three"));
}
