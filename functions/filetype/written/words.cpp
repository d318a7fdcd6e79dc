#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace words {

using Count = std::pair<std::string, int>;

std::vector<Count> most_common(std::istream &input, std::size_t limit) {
    std::map<std::string, int> seen;
    for (std::string word; input >> word;) {
        std::erase_if(word, [](unsigned char c) { return !std::isalpha(c); });
        if (!word.empty()) ++seen[word];
    }
    std::vector<Count> counts(seen.begin(), seen.end());
    std::sort(counts.begin(), counts.end(),
              [](const Count &a, const Count &b) { return a.second > b.second; });
    if (counts.size() > limit) counts.resize(limit);
    return counts;
}

}  // namespace words

int main() {
    for (const auto &[word, count] : words::most_common(std::cin, 10))
        std::cout << count << '\t' << word << '\n';
}
