//! The options of `[profiles]`: sizes of rate limits by name.

use tidegate_limits::{Burst, Fill};

use super::{Allowance, Profile};
use crate::options::kind::{check_name, flag, number};
use crate::options::shown::quoted;
use crate::options::toml::string;
use crate::options::tree::{ConfigValue, Node};
use crate::options::{Mistake, Options, Section, Setting, Toml, ValueKind, options};

/// Most profiles.
const PROFILES_MAX: usize = 256;

options! {
    /// Sizes of rate limits by name, for profile = "…"; you may add any other name. The numbers are
    /// a start, not measured.
    pub struct ProfilesSection {
        /// No limit, whatever other rate limit would match.
        unlimited: Allowance = profile().or(Allowance::Exempt);

        /// People who wait for an answer: 20 s of the backend's time at once, 2 s in each second.
        interactive: Allowance = profile().or(bucket(200.0, 20.0));

        /// Monitoring that asks again and again.
        poller: Allowance = profile().or(bucket(30.0, 3.0));

        /// Large jobs now and then, which may take their time.
        batch: Allowance = profile().or(bucket(600.0, 5.0));

        /// Clients that do harm, and must not be locked out.
        quarantine: Allowance = profile().or(bucket(5.0, 0.2));
    }
}

/// `[profiles]`, with those that the config adds.
pub(crate) struct Profiles {
    section: ProfilesSection,
    pub(crate) list: Vec<Profile>,
    /// Whether all of them could be read, so that a name that is none of them is a mistake.
    pub(crate) sound: bool,
}

impl Options for Profiles {
    fn read(section: &Section<'_>) -> Self {
        let built_in = ProfilesSection::read(section);
        let own = section.others(&profile());
        let notes = section.notes();
        let mut sound = built_in.marks().iter().all(|(_, mark)| mark.sound);
        if own.len() > PROFILES_MAX {
            let cause = format!("there are {} profiles", own.len());
            notes.error(
                &built_in.section,
                cause,
                format!("give at most {PROFILES_MAX}"),
            );
            sound = false;
        }
        let named = |name: &str, setting: &Setting<Allowance>| Profile {
            name: name.into(),
            allowance: setting.value,
        };
        let mut list = vec![
            named("unlimited", &built_in.unlimited),
            named("interactive", &built_in.interactive),
            named("poller", &built_in.poller),
            named("batch", &built_in.batch),
            named("quarantine", &built_in.quarantine),
        ];
        for (key, setting) in own {
            let wrong = check_name(key).err().filter(|_| setting.sound);
            sound &= setting.sound && wrong.is_none();
            if let Some(mistake) = wrong {
                notes.mistake(&setting, mistake);
            }
            list.extend(setting.value.map(|allowance| Profile {
                name: key.into(),
                allowance,
            }));
        }
        Self {
            section: built_in,
            list,
            sound,
        }
    }

    fn write(&self, out: &mut Toml) {
        self.section.write(out);
        let show = profile().show;
        let own = self.list.iter().skip(self.section.marks().len());
        for profile in own {
            let value = show(&profile.allowance).unwrap_or_default();
            out.line(&string(&profile.name), &value);
        }
    }
}

impl Profiles {
    pub(crate) fn find(&self, name: &str) -> Option<&Profile> {
        self.list.iter().find(|profile| *profile.name == *name)
    }
}

const TOKENS: &str = "0.000001 to 1000000000";

pub(crate) fn burst() -> ValueKind<Burst> {
    number(TOKENS, |given| Burst::new(given).ok(), |it| it.get())
}

pub(crate) fn fill() -> ValueKind<Fill> {
    number(TOKENS, |given| Fill::new(given).ok(), |it| it.get())
}

fn bucket(burst: f64, fill: f64) -> Allowance {
    Allowance::Bucket {
        burst: Burst::new(burst).expect("a burst"),
        fill: Fill::new(fill).expect("a fill rate"),
    }
}

fn profile() -> ValueKind<Allowance> {
    const FORM: &str = "{ burst = tokens, fill = tokens per second }, or { exempt = true }";
    let read = |node: &Node| {
        let wrong = |cause: String| Err(Mistake::new(cause, format!("write it as {FORM}")).into());
        let ConfigValue::Table(table) = &node.value else {
            return wrong(format!("{} is not a table", node.in_words()));
        };
        let mut keys = table.keys();
        if let Some(key) = keys.find(|key| !["burst", "fill", "exempt"].contains(&key.as_str())) {
            return wrong(format!("there is no {} in a profile", quoted(key)));
        }
        let exempt = table
            .get("exempt")
            .map_or(Ok(false), |node| (flag().read)(node))?;
        match (exempt, table.get("burst"), table.get("fill")) {
            (true, None, None) => Ok(Allowance::Exempt),
            (true, ..) => wrong("what is exempt has no bucket".to_owned()),
            (false, Some(given_burst), Some(given_fill)) => Ok(Allowance::Bucket {
                burst: (burst().read)(given_burst)?,
                fill: (fill().read)(given_fill)?,
            }),
            (false, None, _) => wrong("burst is not given".to_owned()),
            (false, _, None) => wrong("fill is not given".to_owned()),
        }
    };
    ValueKind::of_parts(FORM, read, |allowance| match allowance.bucket() {
        None => "{ exempt = true }".to_owned(),
        Some((burst, fill)) => format!("{{ burst = {}, fill = {} }}", burst.get(), fill.get()),
    })
}
