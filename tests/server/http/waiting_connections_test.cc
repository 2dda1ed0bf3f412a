#include "server/http/waiting_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Crowd {
 public:
  explicit Crowd(int max, int per_address) : waiting_(max, per_address) {}
  uint64_t Enter(const std::string& address, int name) {
    const uint64_t number = waiting_.NextNumber();
    EnterAgain(address, number, name);
    return number;
  }
  void EnterAgain(const std::string& address, uint64_t number, int name) {
    waiting_.Enter(address, number, [this, name] { closed_.push_back(name); });
  }
  WaitingConnections& waiting() { return waiting_; }
  const std::vector<int>& closed() const { return closed_; }

 private:
  WaitingConnections waiting_;
  std::vector<int> closed_;
};

TEST(WaitingConnections, TheOldestOfACrowdedAddressGoes) {
  Crowd crowd(100, 2);
  crowd.Enter("a", 1);
  crowd.Enter("b", 2);
  crowd.Enter("a", 3);
  EXPECT_THAT(crowd.closed(), IsEmpty());
  crowd.Enter("a", 4);
  EXPECT_THAT(crowd.closed(), ElementsAre(1));
  EXPECT_EQ(crowd.waiting().count(), 3);
}

// A crowd that goes from state to state, as it is refused, does not push out a newcomer behind it.
TEST(WaitingConnections, WhoComesBackKeepsItsPlace) {
  Crowd crowd(100, 2);
  const uint64_t first = crowd.Enter("a", 1);
  const uint64_t second = crowd.Enter("a", 2);
  for (const uint64_t number : {first, second}) crowd.waiting().Leave("a", number);
  crowd.Enter("a", 3);
  crowd.EnterAgain("a", first, 1);
  crowd.EnterAgain("a", second, 2);
  EXPECT_THAT(crowd.closed(), ElementsAre(1));
  crowd.EnterAgain("a", first, 1);  // is itself the one to go
  EXPECT_THAT(crowd.closed(), ElementsAre(1, 1));
}

TEST(WaitingConnections, AmongManyAddressesTheOneWithMostGivesWay) {
  Crowd crowd(3, 100);
  crowd.Enter("a", 1);
  crowd.Enter("b", 2);
  crowd.Enter("b", 3);
  crowd.Enter("c", 4);
  EXPECT_THAT(crowd.closed(), ElementsAre(2));
}

// Who has many addresses, one connection from each, does not push out newcomers from any address.
TEST(WaitingConnections, AmongAddressesThatHaveAsManyTheOldestGoes) {
  Crowd crowd(3, 100);
  crowd.Enter("m", 1);
  crowd.Enter("n", 2);
  crowd.Enter("k", 3);
  crowd.Enter("a", 4);
  crowd.Enter("z", 5);
  EXPECT_THAT(crowd.closed(), ElementsAre(1, 2));
}

TEST(WaitingConnections, OnesThatLeftAreNotClosed) {
  Crowd crowd(100, 1);
  const uint64_t first = crowd.Enter("a", 1);
  crowd.waiting().Leave("a", first);
  crowd.waiting().Leave("a", first);
  crowd.waiting().Leave("z", 7);
  crowd.Enter("a", 2);
  EXPECT_THAT(crowd.closed(), IsEmpty());
  EXPECT_EQ(crowd.waiting().count(), 1);
}

}  // namespace
}  // namespace foredraft
