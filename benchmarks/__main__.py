"""`make bench`: run every benchmark and print its table."""

from benchmarks import cold_start, many, startup, throughput

for benchmark in (startup, cold_start, throughput, many):
    print(benchmark.__doc__.strip())
    print()
    benchmark.main()
    print()
