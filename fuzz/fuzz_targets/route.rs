//! Routing, and reading a body for its function, find functions of the table or nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_zvm::functions::function;
use tidegate_zvm::routes::{BodyRule, RouteMatch, route};

fuzz_target!(|input: (u8, &str, &[u8])| {
    let (method, path, body) = input;
    let method = match method % 6 {
        0 => "GET",
        1 => "HEAD",
        2 => "POST",
        3 => "PUT",
        4 => "DELETE",
        _ => "PATCH",
    };
    match route(method, path) {
        RouteMatch::Function(name, _) => assert!(function(name).is_some()),
        RouteMatch::ReadBody(rule, _) => check_body(rule, body),
        RouteMatch::Unlimited | RouteMatch::Other => {}
    }
    for rule in [
        BodyRule::Action,
        BodyRule::Couple,
        BodyRule::Vswitch,
        BodyRule::Array,
    ] {
        check_body(rule, body);
    }
});

fn check_body(rule: BodyRule, body: &[u8]) {
    if let Some(name) = rule.function(body) {
        assert!(rule == BodyRule::Array || function(&name).is_some());
        assert!(matches!(name.len(), 1..=128));
    }
}
