/* SPDX-License-Identifier: MIT */
/* Cairo writes the PNG files. It is opened on request: neither the build nor the rest of the command needs it. */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include "tools/bench/html/chart_canvas.h"

enum { SCALE = 2 }; /* pixels per unit */

/* Declarations from cairo.h; the same in all of 1.x. */
enum { CAIRO_STATUS_SUCCESS, CAIRO_STATUS_NO_MEMORY };
enum { CAIRO_FORMAT_RGB24 = 1, CAIRO_NORMAL = 0 /* slant and weight */ };
typedef struct cairo_context cairo_t;
typedef struct cairo_surface cairo_surface_t;
typedef struct {
	double x_bearing, y_bearing, width, height, x_advance, y_advance;
} cairo_text_extents_t;
#define CAIRO_FUNCS(X) \
	X(cairo_surface_t *, image_surface_create, (int format, int width, int height)) \
	X(cairo_t *, create, (cairo_surface_t * surface)) \
	X(void, destroy, (cairo_t * cr)) \
	X(void, surface_destroy, (cairo_surface_t * surface)) \
	X(int, surface_write_to_png, (cairo_surface_t * surface, const char *path)) \
	X(void, scale, (cairo_t * cr, double x, double y)) \
	X(void, paint, (cairo_t * cr)) \
	X(void, select_font_face, (cairo_t * cr, const char *family, int slant, int weight)) \
	X(void, set_font_size, (cairo_t * cr, double size)) \
	X(void, text_extents, (cairo_t * cr, const char *text, cairo_text_extents_t *extents)) \
	X(void, show_text, (cairo_t * cr, const char *text)) \
	X(void, set_source_rgb, (cairo_t * cr, double red, double green, double blue)) \
	X(void, set_line_width, (cairo_t * cr, double width)) \
	X(void, set_dash, (cairo_t * cr, const double *dashes, int n, double offset)) \
	X(void, move_to, (cairo_t * cr, double x, double y)) \
	X(void, line_to, (cairo_t * cr, double x, double y)) \
	X(void, stroke, (cairo_t * cr)) \
	X(void, arc, (cairo_t * cr, double x, double y, double radius, double from, double to)) \
	X(void, fill, (cairo_t * cr)) \
	X(void, reset_clip, (cairo_t * cr)) \
	X(void, rectangle, (cairo_t * cr, double x, double y, double width, double height)) \
	X(void, clip, (cairo_t * cr))

static struct {
#define X(result, name, params) result(*name) params;
	CAIRO_FUNCS(X)
#undef X
} cairo;

static bool cairo_open(void)
{
	static void *handle;

	if (handle)
		return true;
	handle = dlopen("libcairo.so.2", RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return false;
	const struct {
		const char *name;
		void **func_p;
	} funcs[] = {
#define X(result, name, params) { "cairo_" #name, (void **)&cairo.name },
		CAIRO_FUNCS(X)
#undef X
	};
	for (size_t i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++) {
		*funcs[i].func_p = dlsym(handle, funcs[i].name);
		if (!*funcs[i].func_p) {
			dlclose(handle);
			handle = NULL;
			return false;
		}
	}
	return true;
}

struct png_canvas {
	struct chart_canvas canvas;
	cairo_t *cr;
};

static cairo_t *canvas_cr(struct chart_canvas *canvas)
{
	return ((struct png_canvas *)canvas)->cr;
}

static void color_set(cairo_t *cr, const char *color)
{
	unsigned r = 0, g = 0, b = 0;

	sscanf(color, "#%2x%2x%2x", &r, &g, &b);
	cairo.set_source_rgb(cr, r / 255.0, g / 255.0, b / 255.0);
}

static void png_line(
    struct chart_canvas *canvas, double x1, double y1, double x2, double y2, const char *color, double width)
{
	cairo_t *cr = canvas_cr(canvas);

	color_set(cr, color);
	cairo.set_line_width(cr, fabs(width));
	cairo.set_dash(cr, (double[]){ 6, 4 }, width < 0 ? 2 : 0, 0);
	cairo.move_to(cr, x1, y1);
	cairo.line_to(cr, x2, y2);
	cairo.stroke(cr);
}

static void png_dot(struct chart_canvas *canvas, double x, double y, const char *color, const char *text)
{
	cairo_t *cr = canvas_cr(canvas);

	(void)text;
	color_set(cr, color);
	cairo.arc(cr, x, y, 3, 0, 2 * M_PI);
	cairo.fill(cr);
}

static void png_text(struct chart_canvas *canvas, double x, double y, enum chart_anchor anchor, double size,
    const char *color, const char *text)
{
	cairo_t *cr = canvas_cr(canvas);
	cairo_text_extents_t extents;

	color_set(cr, color);
	cairo.set_font_size(cr, size);
	cairo.text_extents(cr, text, &extents);
	cairo.move_to(cr, x - extents.x_advance * anchor / 2, y);
	cairo.show_text(cr, text);
}

static void png_clip(struct chart_canvas *canvas, double x, double y, double width, double height)
{
	cairo_t *cr = canvas_cr(canvas);

	cairo.reset_clip(cr);
	if (width <= 0)
		return;
	cairo.rectangle(cr, x, y, width, height);
	cairo.clip(cr);
}

int chart_png(const struct chart *c, const char *path)
{
	static const struct chart_canvas_ops ops = { png_line, png_dot, png_text, png_clip };
	cairo_surface_t *surface;
	struct png_canvas canvas;
	int status;

	if (!cairo_open())
		return -ENOSYS;
	surface = cairo.image_surface_create(CAIRO_FORMAT_RGB24, CHART_WIDTH * SCALE, CHART_HEIGHT * SCALE);
	canvas = (struct png_canvas){ { &ops }, cairo.create(surface) };
	cairo.scale(canvas.cr, SCALE, SCALE);
	color_set(canvas.cr, "#ffffff");
	cairo.paint(canvas.cr);
	cairo.select_font_face(canvas.cr, "sans-serif", CAIRO_NORMAL, CAIRO_NORMAL);
	chart_draw(c, &canvas.canvas);
	status = cairo.surface_write_to_png(surface, path);
	cairo.destroy(canvas.cr);
	cairo.surface_destroy(surface);
	return status == CAIRO_STATUS_SUCCESS ? 0 : status == CAIRO_STATUS_NO_MEMORY ? -ENOMEM : errno ? -errno : -EIO;
}
