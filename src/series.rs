//! The latest day of the process, in rings of fixed size: points of 1 s for 10 minutes, of 10 s
//! for 3 hours and of 60 s for 24 hours, and marks for what happened.
//!
//! Pure: it contains no clock. It takes one sample a second, with the number of the second. A
//! coarse point is filled while it lasts: it adds up the counts and keeps the maximum of the
//! levels.

mod marks;
mod point;

use std::collections::VecDeque;
use std::sync::Arc;

pub use self::marks::{MARKS_MAX, Mark, MarkKind, Marks, TEXT_MAX};
pub use self::point::{BACKENDS, Point, REASONS, Use};

/// The most limits with a history. A further one has none until one of these is gone.
pub const LIMITS_MAX: usize = 32;
/// The most bytes of a limit's name; a longer one has no history.
pub const NAME_MAX: usize = 512;
/// The most memory of the rings and marks.   bytes
pub const BYTES_MAX: usize = 2 << 20;

/// A ring by the length of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSpan {
    /// 600 points of 1 s.
    TenMinutes,
    /// 1,080 points of 10 s.
    ThreeHours,
    /// 1,440 points of 60 s.
    Day,
}

impl RingSpan {
    /// Every span, the shortest first.
    pub const ALL: [Self; 3] = [Self::TenMinutes, Self::ThreeHours, Self::Day];

    /// The length of a point.   s
    #[must_use]
    pub const fn step(self) -> u64 {
        match self {
            Self::TenMinutes => 1,
            Self::ThreeHours => 10,
            Self::Day => 60,
        }
    }

    /// How many points it has.
    #[must_use]
    pub const fn points(self) -> usize {
        match self {
            Self::TenMinutes => 600,
            Self::ThreeHours => 1080,
            Self::Day => 1440,
        }
    }
}

/// The bytes of a series at its bounds. The names of limits are shared with the config, but count in full: a limit
/// that is gone keeps its name here.
const BYTES: usize =
    (RingSpan::TenMinutes.points() + RingSpan::ThreeHours.points() + RingSpan::Day.points())
        * size_of::<Point>()
        + LIMITS_MAX * (size_of::<Option<SeriesColumn>>() + NAME_MAX)
        + MARKS_MAX * (size_of::<Mark>() + TEXT_MAX);
const _: () = assert!(BYTES <= BYTES_MAX, "the series take more than 2 MB");

/// The use of a limit in a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitUse {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The kind of the limit, in one word of the API.
    pub kind: &'static str,
    /// How much of it is used.
    pub of: Use,
}

/// A limit with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesColumn {
    /// The name of the column.
    pub name: Arc<str>,
    /// The kind of the column, in one word of the API.
    pub kind: &'static str,
}

/// The history of a process.
#[derive(Debug)]
pub struct Series {
    rings: [Ring; RingSpan::ALL.len()],
    columns: [Option<SeriesColumn>; LIMITS_MAX],
}

#[derive(Debug)]
struct Ring {
    span: RingSpan,
    points: VecDeque<Point>,
    /// The number of the latest point since the start of the process.
    latest: u64,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            rings: RingSpan::ALL.map(Ring::new),
            columns: std::array::from_fn(|_| None),
        }
    }
}

impl Series {
    /// Takes the sample of a second since the start: its counts, its levels, and the use of each
    /// limit. A second that was left out stays empty. A sample of an earlier second than the last
    /// counts for the last.
    pub fn take(&mut self, second: u64, mut sample: Point, limits: &[LimitUse]) {
        for limit in limits {
            if let Some(column) = self.column(limit, limits) {
                sample.limits[column] = limit.of;
            }
        }
        for ring in &mut self.rings {
            ring.take(second, &sample);
        }
    }

    /// The number of a limit's column. A new limit takes a free one, or that of a limit that is
    /// gone, whose history ends with that.
    fn column(&mut self, limit: &LimitUse, limits: &[LimitUse]) -> Option<usize> {
        let is = |column: &Option<SeriesColumn>, limit: &LimitUse| {
            let column = column.as_ref();
            column.is_some_and(|it| *it.name == *limit.name && it.kind == limit.kind)
        };
        if let Some(known) = self.columns.iter().position(|it| is(it, limit)) {
            return Some(known);
        }
        if limit.name.len() > NAME_MAX {
            return None;
        }
        let free = self.columns.iter().position(Option::is_none);
        let is_gone = |column: &Option<SeriesColumn>| !limits.iter().any(|limit| is(column, limit));
        let at = free.or_else(|| self.columns.iter().position(is_gone))?;
        self.columns[at] = Some(SeriesColumn {
            name: Arc::clone(&limit.name),
            kind: limit.kind,
        });
        let points = self.rings.iter_mut().flat_map(|ring| &mut ring.points);
        points.for_each(|point| point.limits[at] = Use::default());
        Some(at)
    }

    /// The limits with a history, each with the number of its column.
    pub fn columns(&self) -> impl Iterator<Item = (usize, &SeriesColumn)> {
        let columns = self.columns.iter().enumerate();
        columns.filter_map(|(at, column)| Some((at, column.as_ref()?)))
    }

    /// All points of a span, the oldest first; `None` where no sample was taken.
    pub fn points(&self, span: RingSpan) -> impl Iterator<Item = Option<&Point>> {
        let points = &self.rings[span as usize].points;
        let before = span.points() - points.len();
        let taken = points.iter().map(|point| point.is_taken().then_some(point));
        std::iter::repeat_n(None, before).chain(taken)
    }

    /// The second since the start at which the latest point of a span ends.
    #[must_use]
    pub fn end(&self, span: RingSpan) -> u64 {
        (self.rings[span as usize].latest + 1) * span.step()
    }

    /// The latest second.
    #[must_use]
    pub fn latest(&self) -> Option<&Point> {
        self.rings[RingSpan::TenMinutes as usize].points.back()
    }

    /// All of the last hour as one point.
    #[must_use]
    pub fn hour(&self) -> Point {
        let mut hour = Point::default();
        let minutes = self.rings[RingSpan::Day as usize].points.iter();
        minutes.rev().take(60).for_each(|minute| hour.merge(minute));
        hour
    }
}

impl Ring {
    fn new(span: RingSpan) -> Self {
        Self {
            span,
            points: VecDeque::with_capacity(span.points()),
            latest: 0,
        }
    }

    fn take(&mut self, second: u64, sample: &Point) {
        let number = (second / self.span.step()).max(self.latest);
        let before = std::mem::replace(&mut self.latest, number);
        let new = if self.points.is_empty() {
            1
        } else {
            number - before
        };
        // A gap longer than the ring leaves only empty points.
        let points = self.span.points();
        for _ in 0..new.min(points as u64) {
            if self.points.len() == points {
                self.points.pop_front();
            }
            self.points.push_back(Point::default());
        }
        let latest = self.points.back_mut().expect("it has at least one point");
        latest.merge(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(arrivals: u32, waiting: u32) -> Point {
        let mut point = Point::sample();
        point.arrivals = arrivals;
        point.waiting = waiting;
        point
    }

    fn limit(name: &str, used: f32) -> LimitUse {
        LimitUse {
            name: name.into(),
            kind: "window",
            of: Use { used, allowed: 9.0 },
        }
    }

    fn arrivals(series: &Series, span: RingSpan) -> Vec<Option<u32>> {
        let points = series.points(span);
        points.map(|point| point.map(|it| it.arrivals)).collect()
    }

    #[test]
    fn a_coarse_point_adds_up_counts_and_keeps_the_maximum_of_levels() {
        let mut series = Series::default();
        for second in 0..70 {
            series.take(second, sample(2, second as u32 % 7), &[]);
        }
        for span in RingSpan::ALL {
            let all = arrivals(&series, span);
            assert_eq!(all.len(), span.points());
            assert_eq!(all.iter().flatten().sum::<u32>(), 140, "{span:?}");
        }
        let minutes: Vec<_> = series.points(RingSpan::Day).flatten().collect();
        assert_eq!(
            [
                (minutes[0].arrivals, minutes[0].waiting),
                (minutes[1].arrivals, minutes[1].waiting)
            ],
            [(120, 6), (20, 6)]
        );
        assert_eq!(series.end(RingSpan::Day), 120);
        assert_eq!(series.end(RingSpan::TenMinutes), 70);
    }

    #[test]
    fn seconds_without_a_sample_stay_empty_and_old_points_leave() {
        let mut series = Series::default();
        series.take(0, sample(1, 0), &[]);
        series.take(3, sample(1, 0), &[]);
        let all = arrivals(&series, RingSpan::TenMinutes);
        assert_eq!(all[596..], [Some(1), None, None, Some(1)]);
        assert!(all[..596].iter().all(Option::is_none));
        // An earlier second counts for the last.
        series.take(2, sample(5, 0), &[]);
        assert_eq!(arrivals(&series, RingSpan::TenMinutes)[599], Some(6));
        series.take(1_000_000, sample(1, 0), &[]);
        let all = arrivals(&series, RingSpan::TenMinutes);
        assert_eq!(all.iter().flatten().count(), 1);
        let hour: u32 = arrivals(&series, RingSpan::Day).into_iter().flatten().sum();
        assert_eq!(hour, 1);
    }

    #[test]
    fn a_day_of_samples_takes_no_more_room_than_the_rings() {
        let mut series = Series::default();
        let capacity = series.rings.each_ref().map(|ring| ring.points.capacity());
        for second in 0..100_000 {
            series.take(second, sample(1, 1), &[limit("total", 1.0)]);
        }
        let now = series.rings.each_ref().map(|ring| ring.points.capacity());
        assert_eq!(now, capacity);
        assert_eq!(
            capacity,
            RingSpan::ALL.map(RingSpan::points),
            "no slack beyond BYTES"
        );
        assert_eq!(series.hour().arrivals, 59 * 60 + 40);
    }

    #[test]
    fn a_limit_keeps_its_column_and_a_new_one_takes_that_of_one_that_is_gone() {
        let mut series = Series::default();
        let names: Vec<_> = (0..LIMITS_MAX).map(|at| format!("limit {at}")).collect();
        let mut all: Vec<_> = names.iter().map(|name| limit(name, 1.0)).collect();
        series.take(0, Point::sample(), &all);
        all.push(limit("further", 5.0));
        series.take(1, Point::sample(), &all);
        assert!(
            series
                .columns()
                .all(|(_, column)| &*column.name != "further")
        );
        all.remove(4);
        series.take(2, Point::sample(), &all);
        let (at, _) = series
            .columns()
            .find(|(_, column)| &*column.name == "further")
            .expect("it has a column now");
        assert_eq!(at, 4);
        let used: Vec<_> = series
            .points(RingSpan::TenMinutes)
            .flatten()
            .map(|point| point.limits[at].used)
            .collect();
        assert!(used[0].is_nan() && used[1].is_nan(), "{used:?}");
        assert_eq!(used[2], 5.0);
    }
}
