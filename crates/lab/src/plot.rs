//! Lines over an axis, as an SVG.

use plotters::prelude::*;

/// A line.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Series {
    /// Its name.
    pub(crate) name: String,
    /// From left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What is drawn, beside its lines.
pub(crate) struct Labels<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// Told apart by people who see no red or no green, and in print (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];
const SIZE: (u32, u32) = (720, 440);
/// Room above the highest point.
const HEADROOM: f64 = 1.08;

/// Draws lines from the origin on.
pub(crate) fn lines(labels: &Labels<'_>, series: &[Series]) -> Result<String, std::fmt::Error> {
    let mut svg = String::new();
    draw(&mut svg, labels, series).map_err(|_| std::fmt::Error)?;
    Ok(svg)
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(svg: &'a mut String, labels: &Labels<'_>, series: &[Series]) -> Drawn<'a> {
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
    for (one, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(one.points.iter().copied(), colour.stroke_width(2)).point_size(4);
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
