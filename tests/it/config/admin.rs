//! The admin address: which clients get in, and that its token stays hidden.

use tidegate::config;

use super::{good, read, with, wrong};

#[test]
fn the_admin_address_is_guarded() {
    let admin = |lines: &str| with(&format!("[admin]\n{lines}"));
    assert_eq!(good(&admin("bind = \"\"")).admin.bind, None);
    assert_eq!(good(&admin("bind = false")).admin.bind, None);
    wrong("admin", "bind = true", &["not a string"]);
    wrong(
        "admin",
        "bind = \"0.0.0.0:9180\"",
        &["admin.bind", "no token", "127.0.0.1:9180"],
    );
    wrong("admin", "bind = \"10.0.0.1:9180\"", &["no token"]);
    good(&admin("bind = \"0.0.0.0:9180\"\ntoken = \"s3cret\""));
    good(&admin("bind = \"[::1]:9180\""));
    wrong("admin", "token = \"\"", &["the token is empty"]);
    wrong("admin", "token = \"two words\"", &["header"]);
}

#[test]
fn a_token_is_never_shown() {
    let good = good(&with("[admin]\ntoken = \"hunter2\""));
    assert!(!config::effective(&good).contains("hunter2"));
    assert!(!format!("{good:?}").contains("hunter2"));
    for line in [
        "token = \"hunter2 x\"",
        "token = hunter2",
        "token = [\"hunter2\"]",
        "token = \"hunter2",
        "\"token\" = \"hunter2 x\"",
    ] {
        let problems = read(&with(&format!("[admin]\n{line}"))).expect_err(line);
        for graphical in [false, true] {
            let text = problems.render(graphical);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
