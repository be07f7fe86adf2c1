//! The options of callers: `[callers]`, `[[caller]]` and `[costs]`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::{
    AutoRegister, Charge, CostModel, CostUnit, FieldSet, Group, IdentityField, Ipv6Prefix, Label,
    NewCaller, Notes, Pattern, PatternError, TableSettings,
};
use tidegate_limits::Weight;
use tidegate_limits::bucket::TokenCount;

use super::settings::StaticCaller;
use crate::call::costs::Costs;
use crate::options::kind::{
    all, choice, flag, function_name, integer, list, name, number, path, table, text,
};
use crate::options::shown::quoted;
use crate::options::tree::{ConfigValue, Node, Table};
use crate::options::{Mistake, ValueKind, nearest, options, words};

/// Most callers in the config. Each has at least one pattern, and the table keeps this many patterns.
pub(crate) const CALLERS_MAX: usize = 10_000;

words!(IdentityField {
    "user" => User, "originator" => Originator, "ip" => Ip, "user_agent" => UserAgent,
    "listener" => Listener
});

options! {
    /// Callers: who asks.
    pub struct CallersSection {
        /// The fields that tell callers apart that no [[caller]] names. Leave out a field that changes
        /// from call to call, such as an agent with a number in it.
        identify: FieldSet = identify().or(TableSettings::default().identify);

        /// How many leading bits of an IPv6 address tell such callers apart. A client can choose its
        /// address within a network, which has at least a /64. Give a smaller number where one client has a
        /// larger network, and 128 where each address is a client.
        ipv6_prefix: Ipv6Prefix = ipv6_prefix().of("bits").or(TableSettings::default().ipv6_prefix);

        /// How many such callers are kept. When the table is full, the caller that was idle longest is
        /// evicted. Each takes up to 8 KB. 0 keeps none, -1 as many as possible.
        auto_register: AutoRegister = auto_register().of("callers")
            .or(TableSettings::default().auto_register);

        /// How many of them may be new in one second. The rest is counted for the caller (unknown), so
        /// that a client that changes its name with each call evicts no other caller.
        auto_register_per_s: u16 = integer(0..=1000).of("callers")
            .or(TableSettings::default().auto_register_per_second).expert();

        /// Where callers, rate limits and costs are saved that were created through the admin address.
        /// Without it they are lost at a restart.
        state_file: Option<PathBuf> =
            path("the whole path of a file", "/var/lib/tidegate/callers.json", true).optional()
            .example("\"/var/lib/tidegate/callers.json\"").restart();
    }
}

options! {
    /// A caller: the clients that match; one section for each. A call is charged to the most specific
    /// caller with a rate limit, and counted for every caller that matches.
    pub struct CallerSection {
        /// Its name for people; a reload finds the caller again by it. Required.
        label: Option<Label> = label().required(
            "the caller has no label",
            "add what people call it, such as label = \"nova's poller\"",
        ).example("\"nova's poller\"");

        /// The clients that belong to it; all given fields must match. Required. A text is exact, or a
        /// prefix with a final *; ip is an address or a network.
        patterns: Vec<Pattern> = patterns().or(Vec::new()).key("match")
            .example("{ listener = \"nova\" }");

        /// Groups that it is in, for statistics and metrics.
        groups: Vec<Group> = groups().or(Vec::new()).example("[\"monitoring\"]");

        /// The bucket or pace that its calls are charged to. Several callers may share one.
        rate_limit: Option<Arc<str>> = name("poller").described("the name of a [[bucket]] or a [[pace]]")
            .optional().example("\"poller\"");

        /// How many turns its waiting calls have for one turn of an ordinary caller. Raise it for a
        /// caller that should go before the others.
        weight: Option<u32> = integer(1..=1_000_000).of("turns").optional().example("1");
    }
}

options! {
    /// What calls cost, in tokens of a rate limit and of a caller's turns.
    pub struct CostsSection {
        /// The cost of a call whose function has no cost of its own, or that names no function.
        default: TokenCount = cost().of("tokens").or(TokenCount::ONE);

        /// Seconds of the backend's time that one token stands for. It is used for suggestions and
        /// settlement, and for nothing else.
        unit_seconds: CostUnit = unit().of("seconds").or(CostUnit::default());

        /// Whether calls are charged in the end by the time that they took, at most five times their
        /// estimated cost. Turn it on where the time of one function differs much.
        settle: bool = flag().or(false);

        /// Costs of single functions; give the slow ones one token for each tenth of a second. These
        /// numbers are examples: the admin address suggests measured ones.
        functions: Vec<(String, TokenCount)> = table(
            "{ function = tokens, … }",
            1024,
            "write [costs.functions] on a line of its own, and below it lines such as guest_start = 20",
            function_name,
            cost(),
        ).or(Vec::new()).example(
            "{ guest_list = 2, guest_start = 20, guest_delete = 50, guest_deploy = 300, \
             guest_capture = 600, guest_live_migrate = 600, image_import = 100 }",
        );
    }
}

impl CallersSection {
    /// How callers register themselves.
    pub(crate) fn table(&self) -> TableSettings {
        TableSettings {
            auto_register: self.auto_register.value,
            auto_register_per_second: self.auto_register_per_s.value,
            identify: self.identify.value,
            ipv6_prefix: self.ipv6_prefix.value,
        }
    }
}

impl CallerSection {
    /// The caller, of a config without an error.
    pub(crate) fn caller(&self) -> StaticCaller {
        StaticCaller {
            caller: NewCaller {
                label: self.label.required(),
                groups: self.groups.value.clone(),
                notes: Notes::default(),
                patterns: self.patterns.value.clone(),
                charge: Charge::None,
                weight: self.weight.value.and_then(Weight::new),
            },
            rate_limit: self.rate_limit.value.clone(),
        }
    }
}

impl CostsSection {
    /// Whether what calls cost is what the operator meant.
    pub(crate) fn is_read(&self) -> bool {
        self.default.sound && self.functions.sound
    }

    /// The costs of calls.
    pub(crate) fn costs(&self) -> Costs {
        let functions = self.functions.value.iter();
        Costs {
            default: self.default.value,
            functions: functions
                .map(|(name, cost)| (name.as_str().into(), *cost))
                .collect(),
            unit: self.unit_seconds.value,
            settle: self.settle.value,
        }
    }
}

/// The fields that distinguish callers.
fn identify() -> ValueKind<FieldSet> {
    let fields = choice::<IdentityField>();
    let allowed = format!("a list of {}", fields.allowed.replace(" | ", ", "));
    let fields = list(64, "[\"user\", \"ip\"]", fields).described(allowed);
    fields.map(FieldSet::from_iter, |fields| fields.iter().collect())
}

/// The prefix of an IPv6 address that is a client.
fn ipv6_prefix() -> ValueKind<Ipv6Prefix> {
    integer(1..=128).map(
        |given: u8| Ipv6Prefix::new(given).expect("it is within the range"),
        |prefix| prefix.bits(),
    )
}

/// How many callers may register themselves.
fn auto_register() -> ValueKind<AutoRegister> {
    let rows = integer(-1..=i64::from(AutoRegister::MAX.rows()));
    rows.map(
        |given| AutoRegister::from_config(given).expect("it is within the range"),
        |rows| rows.rows().into(),
    )
}

fn label() -> ValueKind<Label> {
    let allowed = "1 to 128 bytes without control characters";
    text(allowed, "nova's poller", |given| {
        Label::new(given).map_err(|mistake| {
            let cure = "give up to 128 bytes of text, such as \"nova's poller\"";
            Mistake::new(mistake.to_string(), cure)
        })
    })
}

fn groups() -> ValueKind<Vec<Group>> {
    let group = text("a name", "monitoring", |given| {
        Group::new(given).map_err(|mistake| {
            let cure = "give names of letters, digits, \"_\", \"-\" or \".\" in quotes, such as \
                        [\"monitoring\"]";
            Mistake::new(mistake.to_string(), cure)
        })
    });
    // How many there may be is checked with the whole caller.
    list(CALLERS_MAX, "[\"monitoring\"]", group).described("a list of up to 16 names")
}

const MATCH_CURE: &str = "write it as a table, such as { user = \"nova\" }, with any of user, \
                          originator, ip, user_agent, listener";

/// A kind of option: one table of patterns, or several.
fn patterns() -> ValueKind<Vec<Pattern>> {
    let read = |node: &Node| {
        let tables = match &node.value {
            ConfigValue::Table(_) => std::slice::from_ref(node),
            ConfigValue::List(list) if list.is_empty() => {
                return Err(Mistake::new("the list is empty", MATCH_CURE).into());
            }
            ConfigValue::List(list) => list,
            _ => {
                let cause = format!(
                    "{} is neither a table nor a list of tables",
                    node.in_words()
                );
                return Err(Mistake::new(cause, MATCH_CURE).into());
            }
        };
        all(tables.iter().map(pattern))
    };
    let show = |patterns: &Vec<Pattern>| {
        let field = |pattern: &Pattern, field: IdentityField| {
            format!(
                "{field} = {}",
                crate::options::toml::string(&pattern.written(field))
            )
        };
        let table = |pattern: &Pattern| {
            let fields: Vec<_> = pattern
                .fields()
                .iter()
                .map(|it| field(pattern, it))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        };
        let tables: Vec<_> = patterns.iter().map(table).collect();
        format!("[{}]", tables.join(", "))
    };
    let allowed = "{ user, originator, ip, user_agent, listener } of patterns, or a list of such \
                   tables";
    ValueKind::of_parts(allowed, read, show)
}

fn pattern(node: &Node) -> Result<Pattern, Vec<Mistake>> {
    let ConfigValue::Table(table) = &node.value else {
        let cause = format!("{} is not a table", node.in_words());
        return Err(Mistake::new(cause, MATCH_CURE)
            .in_part("", &node.place)
            .into());
    };
    let mut parts = [""; IdentityField::ALL.len()];
    all(table.iter().map(|(key, value)| {
        let wrong = |cause: String, cure: &str| {
            Err(Mistake::new(cause, cure).in_part(key, &value.place).into())
        };
        let Some(field) = IdentityField::from_name(key) else {
            return wrong(
                format!("there is no field {} here", quoted(key)),
                &field_cure(key),
            );
        };
        let Some(text) = value.text() else {
            return wrong(
                format!("{} is not a string", value.in_words()),
                "give a pattern in quotes",
            );
        };
        parts[field as usize] = text;
        Ok(())
    }))?;
    Pattern::parse(&parts.into()).map_err(|wrong| {
        wrong
            .iter()
            .map(|it| pattern_mistake(it, table, node))
            .collect()
    })
}

fn pattern_mistake(wrong: &PatternError, table: &Table, node: &Node) -> Mistake {
    let mistake = Mistake::new(wrong.to_string(), MATCH_CURE);
    match table.get(wrong.field()) {
        Some(field) => mistake.in_part(wrong.field(), &field.place),
        None => mistake.in_part("", &node.place),
    }
}

/// The cure for an unknown field.
fn field_cure(key: &str) -> String {
    match key {
        // What the fields are called where this design comes from.
        "host_ip" | "client_ip" => "this is ip here".to_owned(),
        "name_label" => "this is label, beside match here".to_owned(),
        _ => match nearest(key, IdentityField::ALL.iter().map(|field| field.name())) {
            Some(near) => format!("did you mean {}?", quoted(near)),
            None => MATCH_CURE.to_owned(),
        },
    }
}

fn cost() -> ValueKind<TokenCount> {
    let within = |given| CostModel::rounded(given).ok();
    number("0 to 1000000", within, |cost| cost.tokens())
}

fn unit() -> ValueKind<CostUnit> {
    let within = |given: f64| {
        let is_within = (0.001..=3600.0).contains(&given);
        CostUnit::new(is_within.then(|| Duration::from_secs_f64(given))?)
    };
    number("0.001 to 3600", within, |unit| unit.get().as_secs_f64())
}
