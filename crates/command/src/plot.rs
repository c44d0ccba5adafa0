//! Plots: lines over an axis, as an SVG.

use plotters::prelude::*;

/// A line of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The name of the series.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The texts of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    /// The title above the plot.
    pub title: &'a str,
    /// The label of the axis from left to right.
    pub x: &'a str,
    /// The label of the axis from bottom to top.
    pub y: &'a str,
}

/// Colours that people who see no red or no green can tell apart, also in print (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];
const SIZE: (u32, u32) = (720, 440);
/// The factor that leaves room above the highest point.
const HEADROOM: f64 = 1.08;

/// Draws lines from the origin on, with a dot at every point.
pub fn lines(labels: &Labels<'_>, series: &[Series]) -> Result<String, std::fmt::Error> {
    let mut svg = String::new();
    draw(&mut svg, labels, series, None).map_err(|_| std::fmt::Error)?;
    Ok(svg)
}

/// Draws one line of several points, with marks for events: their name, and their times.
pub fn timeline(labels: &Labels<'_>, line: &Series, marks: (&str, &[f64])) -> Result<String, std::fmt::Error> {
    let mut svg = String::new();
    draw(&mut svg, labels, std::slice::from_ref(line), Some(marks)).map_err(|_| std::fmt::Error)?;
    Ok(svg)
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(svg: &'a mut String, labels: &Labels<'_>, series: &[Series], marks: Option<(&str, &[f64])>) -> Drawn<'a> {
    let greatest = |of: fn(&(f64, f64)) -> f64| series.iter().flat_map(|one| &one.points).map(of).fold(1.0, f64::max);
    let (width, height) = (greatest(|point| point.0) * HEADROOM, greatest(|point| point.1) * HEADROOM);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(labels.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..width, 0.0..height)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(labels.x)
        .y_desc(labels.y)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    if let Some((name, marks)) = marks {
        let style = COLOURS[3].stroke_width(1);
        let upright = marks.iter().map(|x| PathElement::new([(*x, 0.0), (*x, height)], style));
        chart
            .draw_series(upright)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x + 9, y - 6), (x + 9, y + 6)], style));
    }
    let (width, dot) = if marks.is_some() { (1, 0) } else { (2, 4) };
    for (one, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(one.points.iter().copied(), colour.stroke_width(width)).point_size(dot);
        chart
            .draw_series(line)?
            .label(&one.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_its_marks() {
        let line = Series { name: "rate".to_owned(), points: (0..500).map(|x| (f64::from(x), 7.0)).collect() };
        let labels = Labels { title: "drill", x: "s", y: "1/s" };
        let marks = |marks: &[f64]| timeline(&labels, &line, ("kill", marks)).unwrap();
        let paths = |svg: &str| svg.matches("<polyline").count();
        assert_eq!(paths(&marks(&[10.0, 20.0, 30.0])), paths(&marks(&[])) + 3);
        assert!(marks(&[1.0]).contains("kill") && marks(&[]).len() < 50 * 500);
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str, slope: f64| Series {
            name: name.to_owned(),
            points: [2.0, 4.0, 16.0].map(|x| (x, x * slope)).into(),
        };
        let labels = Labels { title: "throughput", x: "nodes", y: "M/s" };
        let svg = lines(&labels, &[line("one", 1.0), line("other", 2.0)]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.matches("<polyline").count() >= 2);
        assert!(["throughput", "nodes", "M/s", "one", "other"].iter().all(|text| svg.contains(text)));
    }
}
