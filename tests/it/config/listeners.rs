//! Requirements of listeners, and what stands in the way of one.

use super::{LEAST, doubted, good, read, with, wrong};

#[test]
fn listeners_stay_out_of_each_others_way() {
    let two = |second: &str, extra: &str| {
        LEAST.replace(
            "[backend]",
            &format!("[[listen]]\nname = \"two\"\nbind = \"{second}\"\n{extra}\n[backend]"),
        )
    };
    let check = |second: &str, words: &[&str]| {
        let problems = read(&two(second, "")).expect_err(second);
        let told = problems.to_string();
        for word in words {
            assert!(told.contains(word), "{second}: no {word:?} in\n{told}");
        }
    };
    check(
        "127.0.0.1:8080",
        &["listen[1].bind", "overlaps listen[0].bind"],
    );
    check("0.0.0.0:8080", &["overlaps listen[0].bind"]);
    check("[::]:8080", &["overlaps listen[0].bind"]);
    check("127.0.0.1:9180", &["admin.bind", "overlaps listen[1].bind"]);
    check("0.0.0.0:9180", &["overlaps listen[1].bind"]);
    good(&two("127.0.0.1:8082", ""));
    good(&two("127.0.0.2:8080", ""));
    good(&two("[::1]:8080", ""));
    let free = two("127.0.0.1:0", "").replace("127.0.0.1:8080", "127.0.0.1:0");
    assert_eq!(good(&free).listen.listeners.len(), 2);

    let same = two("127.0.0.1:8082", "").replace("\"two\"", "\"nova\"");
    let told = read(&same).expect_err("one name twice").to_string();
    assert!(told.contains("name of another listener too"), "{told}");
    wrong("route", "x = 1", &["[[route]]"]);
}

#[test]
fn a_config_without_listeners_shows_one() {
    let none = "[limits]\nper_window = \"total:30\"\n";
    let problems = read(none).expect_err("no listener");
    assert_eq!(problems.len(), 1, "{problems}");
    let told = problems.to_string();
    for word in [
        "config.toml: listen: there is no listener",
        "[[listen]]",
        "name = ",
        "bind = ",
    ] {
        assert!(told.contains(word), "no {word:?} in\n{told}");
    }
    let told = read("").expect_err("empty").to_string();
    assert!(
        told.contains("no listener") && told.contains("per_window"),
        "{told}"
    );
    let bare = LEAST.replace("name = \"nova\"\nbind = \"127.0.0.1:8080\"", "");
    let told = read(&bare).expect_err("an empty listener").to_string();
    assert!(
        told.contains("has no name") && told.contains("has no address"),
        "{told}"
    );
}

#[test]
fn listeners_need_their_backends() {
    let socket = "socket = \"127.0.0.1:2000\"\n";
    let http = "http = \"http://127.0.0.1:8081\"\n";
    let text = |protocol: &str, without: &[&str]| {
        let mut text = with("").replace(
            "[backend]",
            &format!("protocol = \"{protocol}\"\n[backend]"),
        );
        for line in without {
            text = text.replace(line, "");
        }
        text
    };
    let refused = |protocol, without: &[&str], word| {
        let problems = read(&text(protocol, without)).expect_err(protocol);
        assert!(
            problems.len() == 1 && problems.to_string().contains(word),
            "{problems}"
        );
    };
    refused("socket", &[socket], "socket = \"127.0.0.1:2001\"");
    refused("tcp", &[], "tcp = \"127.0.0.1:9000\"");
    refused("auto", &[socket, http], "no backend");
    refused("http", &[socket, http], "no backend");
    doubted(&text("auto", &[http]), &["501", "protocol = \"socket\""]);
    doubted(
        &text("auto", &[socket]),
        &["no socket backend", "protocol = \"http\""],
    );
    doubted(&text("http", &[http]), &["501"]);
    for protocol in ["auto", "socket", "http"] {
        assert!(
            read(&text(protocol, &[]))
                .expect(protocol)
                .warnings
                .is_empty()
        );
    }
}
