//! Definitions of metrics: one for each, in the stage that counts it.
//!
//! [`metrics!`](crate::metrics) takes names, kinds, labels, units and help, and makes a struct of
//! them. Labels are passed by name, so a missing or swapped label does not compile. The help is
//! written once, as the doc comment: its first sentence goes into `/metrics`, all of it into the
//! docs, which are made from [`Registry::definitions`].
//!
//! ```
//! tidegate_runtime::metrics! {
//!     /// What a door counts.
//!     pub struct Doors: "example_" {
//!         /// Guests that came in.
//!         guests_total: Counter(door, invited) in "guests",
//!         /// Guests in the house. Those on the balcony count as well.
//!         guests: Gauge in "guests",
//!     }
//! }
//! let registry = tidegate_runtime::metric::Registry::default();
//! let doors = Doors::new(&registry);
//! doors.guests_total(guests_total { door: "north", invited: "yes" }).inc();
//! assert!(registry.text().contains("example_guests_total{door=\"north\",invited=\"yes\"} 1"));
//! ```

use std::collections::HashMap;
use std::ops::Sub;
use std::slice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::core::{Atomic, Collector, GenericCounter, MetricVec, MetricVecBuilder};
use prometheus::{HistogramOpts, Opts, TextEncoder};

use crate::lock;

mod buckets;

pub use buckets::{TimeLimits, buckets};

/// A metric, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name, with its prefix.
    pub name: &'static str,
    /// The Prometheus type.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The unit of the count or of the time.
    pub unit: &'static str,
    /// The meaning of the metric. The first sentence can stand alone.
    pub help: &'static str,
}

impl Definition {
    /// The first sentence of the help, without its full stop.
    fn summary(&self) -> String {
        let help = self.help.trim();
        let sentence = help.split_once(". ").map_or(help, |(first, _)| first);
        sentence.trim_end_matches('.').replace('`', "")
    }
}

/// All metrics of a process, or of a part of it. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    shown: prometheus::Registry,
    defined: Arc<Mutex<Vec<Defined>>>,
    longest: TimeLimits,
}

/// The metrics of one module.
pub type Defined = (&'static str, &'static [Definition]);

impl Registry {
    /// An empty one, whose histograms have their buckets for these times.
    #[must_use]
    pub fn with(longest: TimeLimits) -> Self {
        Self {
            longest,
            ..Self::default()
        }
    }

    /// Every metric by the module that defines it, with a value or without.
    #[must_use]
    pub fn definitions(&self) -> Vec<Defined> {
        lock(&self.defined).clone()
    }

    /// Everything in Prometheus's text format.
    ///
    /// # Panics
    ///
    /// Only if a metric was defined without a name or help.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = TextEncoder::new()
            .encode_to_string(&self.shown.gather())
            .expect("metrics are written to memory");
        for metric in self.definitions().iter().flat_map(|(_, all)| *all) {
            if metric.kind == UntypedCounter::TYPE {
                // The encoder does not know this type.
                let line = |kind| format!("# TYPE {} {kind}\n", metric.name);
                text = text.replace(&line(Counter::TYPE), &line(metric.kind));
            }
        }
        text
    }

    #[doc(hidden)]
    pub fn begin(
        &self,
        module: &'static str,
        definitions: &'static [Definition],
    ) -> Registration<'_> {
        let mut defined = lock(&self.defined);
        defined.push((module, definitions));
        Registration {
            registry: self,
            left: definitions.iter(),
        }
    }
}

/// Adds to a registry that a program has already.
impl From<prometheus::Registry> for Registry {
    fn from(shown: prometheus::Registry) -> Self {
        Self {
            shown,
            defined: Arc::default(),
            longest: TimeLimits::default(),
        }
    }
}

/// Registers the metrics of one struct, in their order.
#[doc(hidden)]
#[derive(Debug)]
pub struct Registration<'a> {
    registry: &'a Registry,
    left: slice::Iter<'static, Definition>,
}

impl Registration<'_> {
    /// The next one, which has no labels.
    pub fn alone<K: MetricKind>(&mut self) -> K::Alone {
        let definition = self.next();
        self.show(K::alone(opts(definition), self.registry.longest))
    }

    /// The next one, which has labels.
    pub fn family<K: MetricKind>(&mut self) -> K::Family {
        let definition = self.next();
        let longest = self.registry.longest;
        self.show(K::family(opts(definition), longest, definition.labels))
    }

    fn next(&mut self) -> &'static Definition {
        self.left.next().expect("each metric has a definition")
    }

    fn show<C: Collector + Clone + 'static>(&self, metric: C) -> C {
        self.registry
            .shown
            .register(Box::new(metric.clone()))
            .expect("every metric is defined once");
        metric
    }
}

fn opts(definition: &Definition) -> Opts {
    Opts::new(definition.name, definition.summary())
}

/// A kind of metric.
pub trait MetricKind {
    /// The Prometheus type.
    const TYPE: &'static str;
    /// A metric without labels, or with values for all of them.
    type Alone: Collector + Clone + 'static;
    /// The collector, with one metric for each set of values of its labels.
    type Family: Collector + Clone + 'static;

    /// Makes one without labels.
    fn alone(opts: Opts, longest: TimeLimits) -> Self::Alone;
    /// Makes one with labels.
    fn family(opts: Opts, longest: TimeLimits, labels: &[&str]) -> Self::Family;
}

/// Makes the kinds from the types of the crate `prometheus`.
macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident $word:literal: $alone:ident, $family:ident, $options:expr;)+) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub enum $kind {}

        impl MetricKind for $kind {
            const TYPE: &'static str = $word;
            type Alone = prometheus::$alone;
            type Family = prometheus::$family;

            fn alone(opts: Opts, longest: TimeLimits) -> Self::Alone {
                prometheus::$alone::with_opts($options(opts, longest)).expect("a legal name")
            }

            fn family(opts: Opts, longest: TimeLimits, labels: &[&str]) -> Self::Family {
                prometheus::$family::new($options(opts, longest), labels).expect("legal names")
            }
        }
    )+};
}

/// The buckets of a [`RatioHistogram`].
const RATIOS: [f64; 10] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];

kinds! {
    /// Counts one by one.
    Counter "counter": IntCounter, IntCounterVec, |opts, _| opts;
    /// Counts one by one, without a type: for names of other programs that lack `_total`.
    UntypedCounter "untyped": IntCounter, IntCounterVec, |opts, _| opts;
    /// Adds up fractions, such as seconds.
    FloatCounter "counter": Counter, CounterVec, |opts, _| opts;
    /// Goes up and down.
    Gauge "gauge": Gauge, GaugeVec, |opts, _| opts;
    /// Times up to ten seconds.
    Histogram "histogram": Histogram, HistogramVec, |opts, _| HistogramOpts::from(opts);
    /// Parts of a whole: 0.05 is 5 %.
    RatioHistogram "histogram": Histogram, HistogramVec,
        |opts, _| HistogramOpts::from(opts).buckets(RATIOS.to_vec());
    /// Times that a call waits, with the [`buckets()`] for [`TimeLimits::wait`].
    WaitHistogram "histogram": Histogram, HistogramVec,
        |opts, longest: TimeLimits| HistogramOpts::from(opts).buckets(buckets(longest.wait));
    /// Times that a backend takes, with the [`buckets()`] for [`TimeLimits::reply`].
    ReplyHistogram "histogram": Histogram, HistogramVec,
        |opts, longest: TimeLimits| HistogramOpts::from(opts).buckets(buckets(longest.reply));
}

/// A value that a gauge can show, in its base unit.
pub trait Figure {
    /// The value.
    fn figure(self) -> f64;
}

/// For types whose conversion is a cast; above 2^53 it rounds, as Prometheus does.
macro_rules! figures {
    ($($type:ty),+) => {$(
        impl Figure for $type {
            fn figure(self) -> f64 {
                self as f64
            }
        }
    )+};
}

figures!(u32, u64, usize, f64);

impl Figure for bool {
    fn figure(self) -> f64 {
        f64::from(u8::from(self))
    }
}

impl Figure for Duration {
    fn figure(self) -> f64 {
        self.as_secs_f64()
    }
}

/// Mirrors a level.
pub trait SetLevel {
    /// Sets it.
    fn show(&self, figure: impl Figure);
}

impl SetLevel for prometheus::Gauge {
    fn show(&self, figure: impl Figure) {
        self.set(figure.figure());
    }
}

/// Mirrors a total that another part counts.
pub trait SetTotal<T> {
    /// Adds the increase since the last time. A lower total means a restart, so the counter
    /// restarts too. Two scrapes must not do this at once.
    fn reach(&self, total: T);
}

impl<P: Atomic<T: Sub<Output = P::T>>> SetTotal<P::T> for GenericCounter<P> {
    fn reach(&self, total: P::T) {
        if total < self.get() {
            self.reset();
        }
        self.inc_by(total - self.get());
    }
}

/// Removes the series whose value of this label is no longer in use: otherwise a process that
/// makes and removes many values would show more and more series.
pub fn retain<T: MetricVecBuilder>(
    metric: &MetricVec<T>,
    label: &str,
    stays: impl Fn(&str) -> bool,
) {
    for family in metric.collect() {
        for series in family.get_metric() {
            let labels: HashMap<&str, &str> = series
                .get_label()
                .iter()
                .map(|pair| (pair.name(), pair.value()))
                .collect();
            if labels.get(label).is_some_and(|value| !stays(value)) {
                // Fails only if the series is gone already.
                let _ = metric.remove(&labels);
            }
        }
    }
}

/// Defines metrics: see [`metric`](crate::metric).
///
/// Each becomes a method of the struct that returns the metric. With one label the method takes its
/// value; with several it takes a struct of them, which has the name of the metric.
#[macro_export]
macro_rules! metrics {
    (@field $kind:ident) => { <$crate::metric::$kind as $crate::metric::MetricKind>::Alone };
    (@field $kind:ident $labels:tt) => { <$crate::metric::$kind as $crate::metric::MetricKind>::Family };

    (@make $next:ident $kind:ident) => { $next.alone::<$crate::metric::$kind>() };
    (@make $next:ident $kind:ident $labels:tt) => { $next.family::<$crate::metric::$kind>() };

    (@retain $metric:expr, $given:ident, $stays:ident) => {};
    (@retain $metric:expr, $given:ident, $stays:ident, ($($label:ident)+)) => {
        if [$(stringify!($label)),+].contains(&$given) {
            $crate::metric::retain(&$metric, $given, &$stays);
        }
    };

    (@method $vis:vis $Metrics:ident [$($help:literal)+] $name:ident $kind:ident) => {
        impl $Metrics {
            $(#[doc = $help])+
            $vis fn $name(&self) -> &<$crate::metric::$kind as $crate::metric::MetricKind>::Alone {
                &self.$name
            }
        }
    };
    (@method $vis:vis $Metrics:ident [$($help:literal)+] $name:ident $kind:ident ($label:ident)) => {
        impl $Metrics {
            $(#[doc = $help])+
            $vis fn $name(&self, $label: &str) -> <$crate::metric::$kind as $crate::metric::MetricKind>::Alone {
                self.$name.with_label_values(&[$label])
            }
        }
    };
    (@method $vis:vis $Metrics:ident [$($help:literal)+] $name:ident $kind:ident ($($label:ident)+)) => {
        #[doc = concat!("The labels of `", stringify!($name), "`.")]
        #[allow(non_camel_case_types, reason = "it has the name of its metric")]
        #[derive(Clone, Copy, Debug)]
        $vis struct $name<'a> {
            $(#[doc = concat!("The value of `", stringify!($label), "`.")] $vis $label: &'a str),+
        }

        impl $Metrics {
            $(#[doc = $help])+
            $vis fn $name(&self, labels: $name<'_>) -> <$crate::metric::$kind as $crate::metric::MetricKind>::Alone {
                self.$name.with_label_values(&[$(labels.$label),+])
            }
        }
    };

    (
        $(#[$about:meta])*
        $vis:vis struct $Metrics:ident: $prefix:literal {
            $(
                $(#[doc = $help:literal])+
                $name:ident: $kind:ident $(($($label:ident),+))? in $unit:literal
            ),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $Metrics {
            $($name: $crate::metrics!(@field $kind $(($($label)+))?)),+
        }

        impl $Metrics {
            /// Their definitions.
            $vis const DEFINITIONS: &'static [$crate::metric::Definition] = &[$(
                $crate::metric::Definition {
                    name: concat!($prefix, stringify!($name)),
                    kind: <$crate::metric::$kind as $crate::metric::MetricKind>::TYPE,
                    labels: &[$($(stringify!($label)),+)?],
                    unit: $unit,
                    help: concat!($($help),+),
                }
            ),+];

            /// Registers them.
            ///
            /// # Panics
            ///
            /// If one of their names is taken.
            #[must_use]
            $vis fn new(registry: &$crate::metric::Registry) -> Self {
                let mut next = registry.begin(module_path!(), Self::DEFINITIONS);
                Self {
                    $($name: $crate::metrics!(@make next $kind $(($($label)+))?)),+
                }
            }

            /// Removes every series that has another value of this label than those that stay.
            #[allow(dead_code, unused_variables, reason = "not every struct has labels that end")]
            $vis fn retain(&self, label: &str, stays: impl Fn(&str) -> bool) {
                $($crate::metrics!(@retain self.$name, label, stays $(, ($($label)+))?);)+
            }
        }

        $($crate::metrics!(@method $vis $Metrics [$($help)+] $name $kind $(($($label)+))?);)+
    };
}
