//! Queries and ids in paths, as read and checked.

use tidegate_callers::{CallerId, Group, Headroom, RateLimitId, UsageSpan};

use super::asked::{ApiResult, FromFields, headroom, named, numbered, window, word};
use super::json::{LocatedValue, ObjectFields, cut};
use super::refused::{ApiRefusal, ObjectKind};
use super::state::CallId;
use crate::admin::now::{FRAMES_MAX, SeriesSpan};
use crate::options::Words;

/// The maximum number of rows in one answer, and the default.
const ROWS_MAX: usize = 10_000;
const ROWS: usize = 1_000;
/// The maximum number of keys of each quota in one answer, and the default.
const QUOTA_KEYS: usize = 100;

/// The callers to list, and how.
pub(super) struct Listing {
    pub(super) sort: Sort,
    pub(super) auto: Option<bool>,
    pub(super) group: Option<Group>,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

/// The sort order of callers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sort {
    Id,
    Label,
    LastAccess,
    /// By calls over a span; without one, in all.
    Calls(Option<UsageSpan>),
    Tokens(Option<UsageSpan>),
}

impl Words for Sort {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("id", Self::Id),
        ("label", Self::Label),
        ("last_access", Self::LastAccess),
        ("calls_5m", Self::Calls(Some(UsageSpan::FiveMinutes))),
        ("calls_1h", Self::Calls(Some(UsageSpan::Hour))),
        ("calls_24h", Self::Calls(Some(UsageSpan::Day))),
        ("calls_total", Self::Calls(None)),
        ("tokens_5m", Self::Tokens(Some(UsageSpan::FiveMinutes))),
        ("tokens_1h", Self::Tokens(Some(UsageSpan::Hour))),
        ("tokens_24h", Self::Tokens(Some(UsageSpan::Day))),
        ("tokens_total", Self::Tokens(None)),
    ];
}

impl Words for bool {
    const WORDS: &'static [(&'static str, Self)] = &[("true", true), ("false", false)];
}

/// `GET /v1/callers?…`
impl FromFields for Listing {
    const FIELDS: &[&[&str]] = &[&["sort", "auto", "group", "offset", "limit"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            sort: fields.optional("sort", word)?.unwrap_or(Sort::Id),
            auto: fields.optional("auto", word)?,
            group: fields.optional("group", named(Group::new))?,
            offset: whole(fields, "offset", 0, usize::from(u16::MAX))?,
            limit: whole(fields, "limit", ROWS, ROWS_MAX)?,
        })
    }
}

/// How many keys of each quota to show.
pub(in crate::admin) struct QuotaKeys(pub(in crate::admin) usize);

/// `GET /v1/quotas?…`
impl FromFields for QuotaKeys {
    const FIELDS: &[&[&str]] = &[&["limit"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        whole(fields, "limit", QUOTA_KEYS, QUOTA_KEYS).map(Self)
    }
}

impl Words for SeriesSpan {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("10m", Self::TenMinutes),
        ("3h", Self::ThreeHours),
        ("24h", Self::Day),
    ];
}

/// `GET /v1/series?…`
impl FromFields for SeriesSpan {
    const FIELDS: &[&[&str]] = &[&["span"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(fields.optional("span", word)?.unwrap_or(Self::TenMinutes))
    }
}

/// How many frames a stream has.
pub(in crate::admin) struct Frames(pub(in crate::admin) usize);

/// `GET /v1/stream?…`
impl FromFields for Frames {
    const FIELDS: &[&[&str]] = &[&["frames"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        whole(fields, "frames", FRAMES_MAX, FRAMES_MAX).map(|frames| Self(frames.max(1)))
    }
}

/// The usage to show.
pub(super) struct UsageOf {
    pub(super) span: UsageSpan,
    pub(super) group: Option<Group>,
}

/// `GET /v1/usage?…`
impl FromFields for UsageOf {
    const FIELDS: &[&[&str]] = &[&["window", "group"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            group: fields.optional("group", named(Group::new))?,
            span: window(fields)?,
        })
    }
}

/// The settings of a suggestion.
pub(super) struct Suggest {
    pub(super) span: UsageSpan,
    pub(super) headroom: Headroom,
}

/// `GET /v1/callers/{id}/suggest?…`
impl FromFields for Suggest {
    const FIELDS: &[&[&str]] = &[&["window", "headroom"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        let number = |it: LocatedValue| it.text(|text| headroom(text.parse().unwrap_or(f64::NAN)));
        let headroom = fields.optional("headroom", number)?;
        Ok(Self {
            headroom: headroom.unwrap_or(Headroom::DEFAULT),
            span: window(fields)?,
        })
    }
}

/// A whole number up to `max`; `unless` if absent.
fn whole(fields: &mut ObjectFields, name: &str, unless: usize, max: usize) -> ApiResult<usize> {
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number| *number <= max);
        number.ok_or_else(|| format!("must be a whole number from 0 to {max}"))
    };
    Ok(fields
        .optional(name, |it| it.text(number))?
        .unwrap_or(unless))
}

// Ids in paths: an invalid id does not exist.

/// Ids in a path, and what they name.
pub(super) trait InPath: Sized {
    fn read(ids: &mut impl Iterator<Item = String>) -> ApiResult<Self>;
}

/// Reads the next id.
fn id<T>(
    ids: &mut impl Iterator<Item = String>,
    what: ObjectKind,
    read: impl Fn(&str) -> Option<T>,
) -> ApiResult<T> {
    let text = ids.next().unwrap_or_default();
    read(&text).ok_or_else(|| ApiRefusal::unknown(what, cut(&text)))
}

impl InPath for CallerId {
    fn read(ids: &mut impl Iterator<Item = String>) -> ApiResult<Self> {
        id(ids, ObjectKind::Caller, |text| {
            numbered(text, 'c').map(Self)
        })
    }
}

impl InPath for RateLimitId {
    fn read(ids: &mut impl Iterator<Item = String>) -> ApiResult<Self> {
        let limit = |text: &str| numbered(text, 'r')?.try_into().ok().map(Self);
        id(ids, ObjectKind::RateLimit, limit)
    }
}

impl InPath for (RateLimitId, CallerId) {
    fn read(ids: &mut impl Iterator<Item = String>) -> ApiResult<Self> {
        Ok((RateLimitId::read(ids)?, CallerId::read(ids)?))
    }
}

impl InPath for CallId {
    fn read(ids: &mut impl Iterator<Item = String>) -> ApiResult<Self> {
        id(ids, ObjectKind::Call, |text| {
            let is_id = text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit());
            let number = u64::from_str_radix(text, 16).ok();
            number.filter(|_| is_id).map(Self)
        })
    }
}
