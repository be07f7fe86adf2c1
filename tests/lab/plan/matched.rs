//! Under another config, calls have the class, the caller and the rate limit that its rules give.

use serde_json::Value;

use super::{config, plan_with, steady};

async fn planned(log: &str, new: &str) -> (Value, String) {
    let arguments = ["--config=new.toml", "--clients=open", "--json"];
    let said = plan_with(log, new, &arguments).await;
    let report: Value = serde_json::from_str(&said.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", said.out, said.err));
    (report["plan"]["open"].clone(), said.out)
}

fn same() -> String {
    config("127.0.0.1:1", "in_turn", 40, 1000)
}

#[tokio::test]
async fn calls_are_put_into_the_class_that_the_new_config_names() {
    let log = steady().await;
    // One at a time, for a function that had no class of its own.
    let new = format!(
        "{}\n[[class]]\nname = \"reads\"\nfunctions = [\"guest_get_info\"]\noutstanding_max = 1\n",
        same()
    );
    let (open, text) = planned(&log, &new).await;
    assert_eq!(open["kept"]["class"], 0, "{text}");
    let limit = &open["limit"]["class:reads:outstanding"];
    assert!(limit["after"]["calls"].as_u64() > Some(40), "{text}");
    assert_eq!(open["backend"]["after"]["in_flight"], 1, "{text}");
    // Of a class that no rule of the log explains, nothing is known.
    let said = log.replace("\"polling\"]", "\"user\"]");
    let arguments = ["--config=new.toml", "--clients=open", "--json", "--force"];
    let said = plan_with(&said, &new, &arguments).await;
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    assert_eq!(report["plan"]["open"]["kept"]["class"], 55, "{}", said.out);
}

#[tokio::test]
async fn calls_are_charged_to_the_rate_limit_that_the_new_config_names() {
    let log = steady().await;
    let slow = "[[bucket]]\nname = \"slow\"\nburst = 1\nfill = 20\n[[caller]]\nlabel = \"nova\"\n";
    let new = format!(
        "{}\n{slow}match = {{ ip = \"127.0.0.1\", listener = \"test\" }}\nrate_limit = \"slow\"\n",
        same()
    );
    let (open, text) = planned(&log, &new).await;
    assert_eq!(open["kept"]["caller"], 0, "{text}");
    let limit = &open["limit"]["rate_limit:slow"];
    assert!(limit["after"]["calls"].as_u64() > Some(10), "{text}");
    // A new rule for a header that no line has.
    let new = new.replace("ip = \"127.0.0.1\"", "user_agent = \"nova*\"");
    let http = log.replace("\"dialect\":\"socket\"", "\"dialect\":\"http\"");
    let (open, text) = planned(&http, &new).await;
    assert_eq!(open["kept"]["caller"], 55, "{text}");
    assert_eq!(open["before"], open["after"], "{text}");
}
