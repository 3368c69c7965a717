/* SPDX-License-Identifier: MIT */
/* Files that the subcommands write. */
#include "tools/common/libc.h"
#include "base/json.h"
#include "tools/common/tool.h"

/* Creates a temporary file in path's directory, with the permissions that path has or would get. 0 or -errno. */
static int tmp_open(struct tool_file *f, const char *path, const struct stat *st)
{
	mode_t mask = umask(077);
	int fd, err;

	umask(mask);
	if (snprintf(f->tmp, sizeof(f->tmp), "%s.XXXXXX", path) >= PATH_MAX)
		return -ENAMETOOLONG;
	fd = mkostemp(f->tmp, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	f->out = fchmod(fd, st ? st->st_mode & 0777 : 0666 & ~mask) ? NULL : fdopen(fd, "w");
	if (f->out)
		return 0;
	err = -errno;
	close(fd);
	unlink(f->tmp);
	return err;
}

/* True: a link, such as /dev/stdout, or no regular file. A rename would put a file in its place. */
static bool stays(const char *path)
{
	struct stat st;

	return !lstat(path, &st) && !S_ISREG(st.st_mode);
}

/* /dev/stdout, or the file that stdout is redirected to: what was printed must stay in front. */
static bool is_stdout(const struct stat *st)
{
	struct stat out;

	return !fstat(STDOUT_FILENO, &out) && out.st_dev == st->st_dev && out.st_ino == st->st_ino;
}

/* Opens the file to write: a temporary one that will replace path, or path itself if it stays. 0 or -errno. */
static int file_open(struct tool_file *f, const char *path, bool replaces)
{
	struct stat st;
	bool there = !stat(path, &st) && !replaces;
	int fd;

	*f = (struct tool_file){ .path = path };
	if (there && S_ISDIR(st.st_mode))
		return -EISDIR;
	f->in_place = !replaces && stays(path);
	if (!f->in_place)
		return tmp_open(f, path, there ? &st : NULL);
	fflush(stdout);
	fd = there && is_stdout(&st) ? dup(STDOUT_FILENO) : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	f->out = fd < 0 ? NULL : fdopen(fd, "w");
	return f->out ? 0 : -errno;
}

static int write_error(const char *path, int err)
{
	if (err)
		tool_error("cannot write %s: %s", path, strerror(-err));
	return err;
}

int tool_file_begin(struct tool_file *f, const char *path)
{
	return write_error(path, file_open(f, path, false));
}

int tool_file_replace(struct tool_file *f, const char *path)
{
	return write_error(path, file_open(f, path, true));
}

int tool_file_end(struct tool_file *f, int err)
{
	/* errno is that of the failed write: no other call has set it since. */
	int failed = !ferror(f->out) ? 0 : errno ? -errno : -EIO;
	int closed = fclose(f->out) ? -errno : failed;

	if (!err && !closed && !f->in_place && rename(f->tmp, f->path))
		closed = -errno;
	if ((err || closed) && !f->in_place)
		unlink(f->tmp);
	return err ? err : write_error(f->path, closed);
}

int tool_file_json(const char *path, const json_t *root)
{
	struct tool_file f;
	struct shunt_json_writer w = { .lines = 4 };
	int err = tool_file_begin(&f, path);

	if (err)
		return err;
	w.out = f.out;
	shunt_json_write_value(&w, NULL, root);
	/* A failed write is reported at the end of the file. */
	return tool_file_end(&f, 0);
}

int tool_file_try(const char *path)
{
	struct tool_file f;
	struct stat st;
	int err;

	/* Opening a pipe would wait for its reader, and closing it would end the reader; a link's file would be cut. */
	if (!stat(path, &st) && !S_ISDIR(st.st_mode) && stays(path))
		return write_error(path, access(path, W_OK) ? -errno : 0);
	err = file_open(&f, path, false);
	if (!err) {
		fclose(f.out);
		if (!f.in_place)
			unlink(f.tmp);
	}
	return write_error(path, err);
}
