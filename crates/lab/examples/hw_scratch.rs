use remora_fabric::sim::Profile;
fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    for name in names {
        let profile = Profile::named(&name).unwrap_or_else(|| Profile::read(&name).expect("profile"));
        let began = std::time::Instant::now();
        for row in remora_lab::hardware::calibrate(&profile, 1).expect("rows") {
            println!("{:<58} {:>5} {:>8} {:>9.3} {:>7} {}", row.name, row.unit, row.published.map_or(String::new(), |p| p.to_string()), row.simulated,
                row.error.map_or(String::new(), |e| format!("{:+.1}", 100.0*e)), if row.is_off() {"OFF"} else {""});
        }
        println!("{name} {:?}", began.elapsed());
    }
}
