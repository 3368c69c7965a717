/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "chart_pen.h"

#ifdef TOOL_CAIRO
#include <cairo.h>
#include <math.h>

enum { SCALE = 2 }; /* dots per unit */

struct png_pen {
	struct chart_pen pen;
	cairo_t *cr;
};

static cairo_t *cr_of(struct chart_pen *pen)
{
	return ((struct png_pen *)pen)->cr;
}

static void color_set(cairo_t *cr, const char *color)
{
	unsigned r = 0, g = 0, b = 0;

	sscanf(color, "#%2x%2x%2x", &r, &g, &b);
	cairo_set_source_rgb(cr, r / 255.0, g / 255.0, b / 255.0);
}

static void png_line(struct chart_pen *pen, double x1, double y1, double x2, double y2, const char *color, double width)
{
	cairo_t *cr = cr_of(pen);

	color_set(cr, color);
	cairo_set_line_width(cr, fabs(width));
	cairo_set_dash(cr, (double[]){ 6, 4 }, width < 0 ? 2 : 0, 0);
	cairo_move_to(cr, x1, y1);
	cairo_line_to(cr, x2, y2);
	cairo_stroke(cr);
}

static void png_dot(struct chart_pen *pen, double x, double y, const char *color, const char *text)
{
	cairo_t *cr = cr_of(pen);

	(void)text;
	color_set(cr, color);
	cairo_arc(cr, x, y, 3, 0, 2 * M_PI);
	cairo_fill(cr);
}

static void png_text(
    struct chart_pen *pen, double x, double y, enum chart_anchor anchor, double size, const char *color, const char *text)
{
	cairo_t *cr = cr_of(pen);
	cairo_text_extents_t extents;

	color_set(cr, color);
	cairo_set_font_size(cr, size);
	cairo_text_extents(cr, text, &extents);
	cairo_move_to(cr, x - extents.x_advance * anchor / 2, y);
	cairo_show_text(cr, text);
}

static void png_clip(struct chart_pen *pen, double x, double y, double width, double height)
{
	cairo_t *cr = cr_of(pen);

	cairo_reset_clip(cr);
	if (width <= 0)
		return;
	cairo_rectangle(cr, x, y, width, height);
	cairo_clip(cr);
}

int chart_png(const struct chart *c, const char *path)
{
	static const struct chart_pen_ops ops = { png_line, png_dot, png_text, png_clip };
	cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, CHART_WIDTH * SCALE, CHART_HEIGHT * SCALE);
	struct png_pen pen = { { &ops }, cairo_create(surface) };
	cairo_status_t status;

	cairo_scale(pen.cr, SCALE, SCALE);
	color_set(pen.cr, "#ffffff");
	cairo_paint(pen.cr);
	cairo_select_font_face(pen.cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
	chart_draw(c, &pen.pen);
	status = cairo_surface_write_to_png(surface, path);
	cairo_destroy(pen.cr);
	cairo_surface_destroy(surface);
	return status == CAIRO_STATUS_SUCCESS ? 0 : status == CAIRO_STATUS_NO_MEMORY ? -ENOMEM : errno ? -errno : -EIO;
}
#else
int chart_png(const struct chart *c, const char *path)
{
	(void)c, (void)path;
	return -ENOSYS;
}
#endif
