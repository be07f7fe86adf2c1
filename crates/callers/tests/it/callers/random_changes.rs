//! Random changes of a table: a look-up finds what a scan of all rows finds, and its laws hold.

use super::*;

// ---- Random histories, against a scan of all rows.

impl Random {
    fn pattern(&mut self) -> Pattern {
        loop {
            let text = PatternText {
                user: self.pick(&["", "", "ann", "a*"]),
                originator: "",
                ip: self.pick(&["", "10.0.0.1", "10.0.0.0/31", "10.0.0.0/8", "::1"]),
                user_agent: self.pick(&["", "a", "a*", "aa*", "ab", r"a\*"]),
                listener: self.pick(&["", "nova", "n*"]),
            };
            if let Ok(pattern) = Pattern::parse(&text) {
                return pattern;
            }
        }
    }

    fn identity(&mut self) -> Identity<'static> {
        let ip = self.pick(&["", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1", "::1"]);
        Identity {
            user: self.pick(&["", "ann", "abe"]),
            user_agent: self.pick(&["", "a", "aa", "aab", "ab", "a*"]),
            listener: self.pick(&["", "nova", "poll"]),
            ip: ip.parse().ok(),
            ..Identity::default()
        }
    }

    fn charge(&mut self) -> Charge {
        self.pick(&[
            Charge::None,
            Charge::None,
            Charge::Exempt,
            Charge::Limit(RateLimitId(1)),
        ])
    }

    /// A caller that exists, mostly.
    fn id(&mut self, table: &CallerTable) -> CallerId {
        let ids: Vec<CallerId> = table.rows().map(|row| row.id).collect();
        if self.one_in(20) {
            CallerId(self.below(1000))
        } else {
            self.pick(&ids)
        }
    }
}

/// The callers of a call, by asking every row.
fn scan(table: &CallerTable, identity: &Identity<'_>) -> Vec<(CallerId, Specificity)> {
    let mut found: Vec<(CallerId, Specificity)> = table
        .rows()
        .filter_map(|row| {
            let matching = row.patterns.iter().filter(|p| p.matches(identity));
            let best = matching.map(Pattern::specificity).max()?;
            Some((row.id, best))
        })
        .collect();
    found.sort_by_key(|(id, specificity)| (Reverse(*specificity), *id));
    found
}

/// Checks the laws that hold after any change.
fn check_laws(table: &CallerTable, auto_register: usize) {
    let autos = table.rows().filter(|row| row.kind == RowKind::Auto);
    let autos: Vec<&CallerRow> = autos.collect();
    assert_eq!(autos.len(), table.registered());
    assert!(autos.len() <= auto_register);
    for row in autos {
        assert!(row.label.is_none() && row.groups.is_empty());
        assert_eq!((row.charge, row.patterns.len()), (Charge::None, 1));
    }
    let mut of_groups: BTreeMap<&Group, u32> = BTreeMap::new();
    for row in table.rows() {
        for group in &row.groups {
            *of_groups.entry(group).or_default() += 1;
        }
        for pattern in &row.patterns {
            assert_eq!(table.holder(pattern), Some(row.id));
        }
    }
    assert!(of_groups.into_iter().eq(table.groups()));
}

/// Evicted callers were seen no later than those that stay.
fn check_forgotten(
    before: &BTreeMap<CallerId, LastCall>,
    forgotten: &[CallerId],
    table: &CallerTable,
) {
    let autos = table.rows().filter(|row| row.kind == RowKind::Auto);
    let stay = autos.filter_map(|row| before.get(&row.id)).min();
    for id in forgotten {
        assert!(
            stay.is_none_or(|stay| before[id] <= *stay),
            "{id} {before:?}"
        );
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let auto_register = random.pick(&[0, 1, 5, 100]);
    let identify: FieldSet = IdentityField::ALL
        .into_iter()
        .filter(|_| !random.one_in(3))
        .collect();
    let ipv6_prefix = Ipv6Prefix::new(random.pick(&[32, 64, 128])).expect("a prefix");
    let mut table = CallerTable::new(TableSettings {
        identify,
        ipv6_prefix,
        ..settings(auto_register, random.pick(&[1, 10, 1000]))
    });
    let (mut matches, mut now) = (Matches::default(), Timestamp::ZERO);
    for _ in 0..200 {
        now = now + Duration::from_millis(1 + random.below(200));
        match random.below(12) {
            0 | 1 => {
                let patterns = (0..=random.below(3)).map(|_| random.pattern()).collect();
                let blank = new_caller("made", &[], random.charge());
                let _ = table.insert(NewCaller { patterns, ..blank });
            }
            2 => {
                let (into, from) = (random.id(&table), [random.id(&table), random.id(&table)]);
                let _ = table.merge(into, &from[..1 + random.below(2) as usize]);
            }
            3 => {
                let _ = table.remove(random.id(&table));
            }
            4 => {
                let patch = Patch {
                    label: random.one_in(2).then(|| label("named")),
                    groups: random
                        .one_in(2)
                        .then(|| groups(&[random.pick(&["g", "h"])])),
                    notes: None,
                    charge: random.one_in(2).then(|| random.charge()),
                    weight: None,
                };
                let _ = table.patch(random.id(&table), patch);
            }
            5 => {
                let rows = (0..random.below(4)).map(|nth| NewCaller {
                    patterns: vec![random.pattern()],
                    ..new_caller(&format!("static-{nth}"), &[], random.charge())
                });
                let rows = rows.collect();
                let _ = table.replace_static(rows);
            }
            _ => {
                let identity = random.identity();
                let known = scan(&table, &identity);
                table.classify(&identity, &mut matches);
                let found: Vec<_> = matches.as_slice().iter().collect();
                let dry: Vec<_> = found
                    .iter()
                    .map(|m| (m.caller(), m.specificity()))
                    .collect();
                if known.is_empty() {
                    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
                } else {
                    assert_eq!(dry, known);
                }
                let last_calls = table.rows().map(|row| (row.id, row.last_call));
                let last_calls = last_calls.collect();
                let registration = table.classify_and_touch(now, &identity, &mut matches);
                if let Registration::Registered {
                    forgotten: Some(id),
                    ..
                } = registration
                {
                    check_forgotten(&last_calls, &[id], &table);
                }
                let after = scan(&table, &identity);
                let is_left_out = registration == Registration::Surplus || after.is_empty();
                let mut expected: Vec<CallerId> = after.iter().map(|(id, _)| *id).collect();
                if is_left_out {
                    expected.push(CallerId::UNKNOWN);
                }
                assert_eq!(ids(&matches), expected, "{registration:?}");
                if let Registration::Registered { id, .. } = registration {
                    let own = Pattern::identifying(&identity, identify, ipv6_prefix);
                    let own = own.expect("it was registered");
                    assert_eq!(table.holder(&own), Some(id));
                }
                for id in expected {
                    let row = table.get(id).expect("it matched");
                    assert_eq!(row.last_call, LastCall::At(now));
                }
            }
        }
        check_laws(&table, auto_register.try_into().expect("not negative"));
    }
}

#[test]
fn a_table_finds_what_a_scan_finds_whatever_was_done_to_it() {
    for seed in seeds(0..500) {
        run(seed);
    }
}
