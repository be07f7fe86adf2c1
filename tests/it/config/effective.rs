//! The effective config, printed, is an equivalent config.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::config;

use super::{EXAMPLE, LEAST, good, with};
use crate::seeds::any_seed;

#[test]
fn the_effective_config_reads_back_as_the_same() {
    let again = |text: &str| {
        let config = good(text);
        let written = config::effective(&config);
        assert_eq!(good(&written), config, "{written}");
    };
    again(LEAST);
    again(EXAMPLE);
    again(&with(
        "outstanding = 0\nwindow_shape = \"fixed\"\nwindow_stamp = \"replied\"\nwindow_guard = \"0s\"",
    ));
    again(&with("window = \"0s\""));
    let unknown = with("allow_unknown = true");
    again(&unknown.replace("total:30", "total:0, b:2, a:1, c:0"));
    again(&with(
        "[queue]\npostpone = \"in_turn\"\nwhen_full = \"refuse\"\n[admin]\nbind = false\n[log]\nformat = \"json\"\nlevel = \"info,tidegate=debug\"\naccess = false",
    ));
    again(&with(
        "[[route]]\nmethod = \"*\"\npath = \"/a/{b}\"\nfunction = \"x\"\n[[route]]\nmethod = \"GET\"\npath = \"/\\\"q\\\"\"",
    ));
    again(&with(
        "[client]\nbody_min_rate = \"0B\"\nidle_timeout = \"90m\"\nwrite_timeout = \"1500ms\"\nbuffer_bytes = \"1025B\"",
    ));
    again(
        &with("")
            .replace("127.0.0.1:2000", "[::1]:2000")
            .replace("127.0.0.1:8081", "sdk.example"),
    );

    let secret = good(&with(
        "[admin]\nbind = \"0.0.0.0:9180\"\ntoken = \"s3cret\"",
    ));
    let written = config::effective(&secret);
    assert!(!written.contains("s3cret"), "{written}");
    assert_eq!(good(&written.replace("(hidden)", "s3cret")), secret);
}

#[test]
fn every_config_drawn_at_random_reads_back_as_the_same() {
    let seed = any_seed();
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..500 {
        let mut pick = |words: &[&str]| words[random.random_range(0..words.len())].to_owned();
        let postpone = pick(&[
            "\"jitter\"\npostpone_jitter = [\"1ms\", \"90s\"]",
            "\"in_turn\"",
        ]);
        let text = format!(
            "[[listen]]\nname = \"a\"\nbind = \"{}\"\nprotocol = \"{}\"\ncancel_on_eof = {}\n\
             [backend]\nkind = \"zvm\"\nsocket = \"{}\"\nhttp = \"{}\"\ntcp = \"t:1\"\nresponse_timeout = \"{}\"\n\
             [queue]\nwhen_full = \"{}\"\npostpone = {postpone}\n\
             [limits]\nallow_unknown = true\nwindow = \"{}s\"\nper_window = \"{}\"\n\
             window_shape = \"{}\"\nwindow_guard = \"{}\"\n[admin]\nbind = \"{}\"\n[log]\nlevel = \"{}\"\n",
            pick(&["127.0.0.1:1", "[::]:1", "0.0.0.0:0"]),
            pick(&["auto", "socket", "http", "tcp"]),
            pick(&["true", "false"]),
            pick(&["127.0.0.1:3", "[::1]:65535", "a-b.c_d:2000"]),
            pick(&["http://x", "http://[::1]:3/", "http://1.2.3.4:5"]),
            pick(&["1ms", "999ms", "61s", "24h", "61m"]),
            pick(&["wait", "refuse"]),
            pick(&["0", "1", "86400"]),
            pick(&["total:0", "total:9,a:0,b:3", "total : 1000000 , x.y-z : 1"]),
            pick(&["sliding", "fixed"]),
            pick(&["0s", "1ms", "10s"]),
            pick(&["", "127.0.0.1:9180", "[::1]:9"]),
            pick(&["off", "trace", "warn,a::b=debug"]),
        );
        let config = good(&text);
        let written = config::effective(&config);
        assert_eq!(
            good(&written),
            config,
            "seed {seed}, round {round}\n{text}\n{written}"
        );
    }
}
