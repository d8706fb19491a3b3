package main

import (
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// looks are colours that the colour-blind can tell apart, too; rivals are dashed.
var looks = map[string]struct {
	colour color.RGBA
	shape  draw.GlyphDrawer
	dashed bool
}{
	redisRate: {color.RGBA{0, 0, 0, 255}, draw.CircleGlyph{}, true},
	ulule:     {color.RGBA{130, 130, 130, 255}, draw.SquareGlyph{}, true},
	throttle:  {color.RGBA{204, 121, 167, 255}, draw.TriangleGlyph{}, true},
	fixed:     {color.RGBA{0, 114, 178, 255}, draw.CircleGlyph{}, false},
	log:       {color.RGBA{213, 94, 0, 255}, draw.SquareGlyph{}, false},
	compact:   {color.RGBA{146, 73, 0, 255}, draw.PlusGlyph{}, false},
	buckets:   {color.RGBA{0, 158, 115, 255}, draw.TriangleGlyph{}, false},
	alone:     {color.RGBA{86, 180, 233, 255}, draw.CrossGlyph{}, false},
	leased:    {color.RGBA{230, 159, 0, 255}, draw.PyramidGlyph{}, false},
	shared:    {color.RGBA{120, 94, 240, 255}, draw.BoxGlyph{}, false},
}

var charts = []struct{ workload, title string }{
	{"hot", "hot: one subject"},
	{"even", "even: 10,000 subjects"},
}

// chart draws decisions/s over callers into an SVG file: a panel a workload,
// and the legend to their right.
func (r *results) chart(file string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	const width, height, legendWidth = 11 * vg.Inch, 4.4 * vg.Inch, 1.6 * vg.Inch
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, 3
	row := make([]*plot.Plot, len(charts))
	for i, c := range charts {
		row[i] = r.panel(c.title)
		if err := r.draw(row[i], c.workload, &legend, i == 0); err != nil {
			return err
		}
	}
	sameScale(row)
	tiles := draw.Tiles{Rows: 1, Cols: len(row), PadX: 16, PadTop: 10, PadBottom: 10, PadLeft: 10}
	for i, p := range row {
		p.Draw(tiles.At(draw.Crop(whole, 0, -legendWidth, 0, 0), i, 0))
	}
	legend.Draw(draw.Crop(whole, width-legendWidth+12, 0, 0, -0.5*vg.Inch))
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(out)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// sameScale makes the panels comparable, and leaves room for the outermost points.
func sameScale(row []*plot.Plot) {
	whole := *row[0]
	for _, p := range row {
		whole.Y.Min, whole.Y.Max = min(whole.Y.Min, p.Y.Min), max(whole.Y.Max, p.Y.Max)
	}
	for _, p := range row {
		p.X.Min, p.X.Max = p.X.Min/1.3, p.X.Max*1.3
		p.Y.Min, p.Y.Max = whole.Y.Min/1.3, whole.Y.Max*1.3
	}
}

func (r *results) panel(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = 6
	p.X.Label.Text, p.Y.Label.Text = "callers at once", "decisions/s"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var marks plot.ConstantTicks
	for _, n := range r.callers {
		marks = append(marks, plot.Tick{Value: float64(n), Label: strconv.Itoa(n)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = marks, decades{}
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{225}
	grid.Horizontal.Color = color.Gray{225}
	p.Add(grid)
	return p
}

// draw adds a workload's lines to its panel, and to the legend if it's the first.
func (r *results) draw(p *plot.Plot, workload string, legend *plot.Legend, first bool) error {
	for _, name := range r.limiters {
		line, points, err := r.line(workload, name)
		if err != nil {
			return err
		}
		if line == nil {
			continue
		}
		p.Add(line, points)
		if first {
			legend.Add(name, line, points)
		}
	}
	return nil
}

// line gives nil if nothing of it was measured.
func (r *results) line(workload, name string) (*plotter.Line, *plotter.Scatter, error) {
	var points plotter.XYs
	for _, n := range r.callers {
		if m := r.row(cell{workload, n}, name); m != nil {
			points = append(points, plotter.XY{X: float64(n), Y: m.perSecond})
		}
	}
	if len(points) == 0 {
		return nil, nil, nil
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	look := looks[name]
	line.Color, line.Width = look.colour, 1.6
	if look.dashed {
		line.Dashes = []vg.Length{4, 3}
	}
	dots.Color, dots.Shape, dots.Radius = look.colour, look.shape, 3
	return line, dots, nil
}

// decades marks 1, 2 and 5 of each power of ten.
type decades struct{}

func (decades) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for power := 1.0; power <= high; power *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if v := n * power; v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: thousands(v)})
			}
		}
	}
	return ticks
}
